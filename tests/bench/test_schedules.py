"""The benchmark of schedules, trained for real at a size that takes seconds; what it says of speed is not tested."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from rewardflow.bench.delayed_reward import DelayedReward, matching_share
from rewardflow.bench.schedule_figures import PUBLISHED_CHANGES, MeasuredSchedule, mean_of_seeds, report_of, rows_of
from rewardflow.bench.schedules import SCHEDULES, BenchSize, Undisturbed, run_schedule_benchmarks
from rewardflow.errors import InvalidInput
from rewardflow.reward.latency import MEAN_S
from rewardflow.types import Rollout

TINY = BenchSize(
    groups_per_step=8, group_size=3, mini_batches=2, steps=3, slots=(4, 12), micro_batch_tokens=30, hidden=8
)


@pytest.fixture(scope="module")
def measured() -> Sequence[MeasuredSchedule]:
    threads = torch.get_num_threads()
    try:
        return list(run_schedule_benchmarks(size=TINY))
    finally:
        torch.set_num_threads(threads)


def figures(schedule: str, *, slots: int = 256, as_original: bool = False, step_s: float = 2.0) -> MeasuredSchedule:
    return MeasuredSchedule(
        schedule=schedule,
        slots=slots,
        as_original=as_original,
        step_s=step_s,
        critical_path_s=1.6,
        service_s=1.0,
        compute_s=0.9,
        undisturbed_compute_s=0.8,
        scale=0.01,
        exposed_s=0.5,
        hidden_s=0.25,
        final_reward=0.125,
        change=-0.25,
    )


def test_every_schedule_is_measured_at_every_number_of_slots_and_as_the_original(
    measured: Sequence[MeasuredSchedule],
) -> None:
    ours = [(name, slots, False) for slots in TINY.slots for name in SCHEDULES]
    original = [(name, TINY.slots[0], True) for name in PUBLISHED_CHANGES]
    assert [(one.schedule, one.slots, one.as_original) for one in measured] == ours + original


def test_a_step_that_is_not_stale_takes_at_least_its_own_compute(measured: Sequence[MeasuredSchedule]) -> None:
    for one in measured:
        if SCHEDULES[one.schedule][1] == 0:
            assert one.step_s >= one.compute_s > 0
            assert one.critical_path_s >= one.compute_s * (1 - 1e-9)


def test_time_is_exposed_or_hidden_and_scores_are_shares(measured: Sequence[MeasuredSchedule]) -> None:
    for one in measured:
        assert one.exposed_s >= 0
        assert one.hidden_s >= 0
        assert one.exposed_s + one.hidden_s > 0
        assert 0 <= one.final_reward <= 1


def test_delays_are_to_compute_as_in_the_original(measured: Sequence[MeasuredSchedule]) -> None:
    for one in measured:
        assert one.service_s * one.slots == pytest.approx(8 * 3 * MEAN_S * one.scale, rel=0.35)  # 24 draws
        assert one.scale > 0


def test_one_second_of_the_original_is_the_same_share_of_a_steps_compute_here() -> None:
    assert Undisturbed(compute_s=40.0, log_probs_s=4.6).scale == pytest.approx(35.4 / 177)


def test_a_change_is_against_the_synchronous_loop_with_as_many_slots(measured: Sequence[MeasuredSchedule]) -> None:
    for one in measured:
        (synchronous,) = [
            other
            for other in measured
            if (other.schedule, other.slots, other.as_original) == ("synchronous", one.slots, one.as_original)
        ]
        assert one.change == pytest.approx(one.step_s / synchronous.step_s - 1)


def test_a_run_without_a_middle_is_refused() -> None:
    with pytest.raises(InvalidInput, match="steps must be at least 3"):
        BenchSize(steps=2)


# -- how it is told --


def test_the_report_keeps_the_original_apart() -> None:
    report = report_of([figures("pipeline"), figures("pipeline", as_original=True)])
    assert report == {
        "schedules": [EXPECTED],
        "as_original": [{**EXPECTED, "published_change": -0.123}],
    }


EXPECTED = {
    "schedule": "pipeline",
    "slots": 256,
    "step_s": 2.0,
    "critical_path_s": 1.6,
    "over_critical_path": 1.25,
    "floor_s": 1.0,
    "over_floor": 2.0,
    "change": -0.25,
    "exposed_s": 0.5,
    "hidden_s": 0.25,
    "final_reward": 0.125,
    "service_s": 1.0,
    "compute_s": 0.9,
    "undisturbed_compute_s": 0.8,
    "scale": 0.01,
}


def test_the_floor_is_the_greater_of_undisturbed_compute_and_service() -> None:
    one = figures("pipeline")
    assert one.floor_s == one.service_s
    assert replace(one, undisturbed_compute_s=3.0).floor_s == 3.0
    assert replace(one, compute_s=3.0).floor_s == one.service_s


def test_seeds_are_averaged_and_ratios_are_of_the_means() -> None:
    mean = mean_of_seeds([figures("pipeline", step_s=2.0), figures("pipeline", step_s=4.0)])
    assert (mean.step_s, mean.slots, mean.schedule) == (3.0, 256, "pipeline")
    assert mean.over_floor == 3.0


def test_rows_hold_what_was_promised_of_each() -> None:
    every = [
        figures("pipeline_one_step", slots=256),
        figures("stream_0", slots=256),
        figures("pipeline_one_step", slots=1024),
        figures("stream_0", slots=1024),
        figures("one_step", as_original=True),
    ]
    assert [(row.name, row.bar) for row in rows_of(every)] == [
        ("pipeline_one_step, 256 slots: step", "<= 1.05"),
        ("pipeline_one_step, 256 slots: step over its floor", "<= 1.05"),
        ("stream_0, 256 slots: step", "<= 1.05"),
        ("pipeline_one_step, 1024 slots: step", "<= 1.05"),
        ("stream_0, 1024 slots: step", "<= 1.05"),
        ("stream_0, 1024 slots: step over its floor", "<= 1.10"),
        ("as the original, one_step, 256 slots: step", "<= 1.05"),
        ("as the original, one_step, 256 slots: change of -25.0%, published -25.2%", "<= 5"),
    ]


# -- the reward --


def rollout(number: int, index: int) -> Rollout:
    return Rollout(group_id=str(number), index=index, group_size=2, response="12", ground_truth="123")


def test_a_delay_depends_on_the_seed_and_the_rollouts_place_alone() -> None:
    def delays_s(seed: int, scale: float = 1.0) -> list[float]:
        reward = DelayedReward(seed=seed, scale=scale, steps=2, groups_per_step=2, group_size=2)
        return [reward.delay_s(rollout(number, index)) for number in range(4) for index in range(2)]

    assert delays_s(0) == delays_s(0) != delays_s(1)
    assert len(set(delays_s(0))) == 8
    assert all(1 <= delay_s <= 40 for delay_s in delays_s(0))
    assert delays_s(0, 0.5) == pytest.approx([delay_s / 2 for delay_s in delays_s(0)])


def test_the_score_is_the_share_of_characters_in_their_places() -> None:
    assert matching_share("407", "407") == 1.0
    assert matching_share("497", "407") == pytest.approx(2 / 3)
    assert matching_share("4", "407") == pytest.approx(1 / 3)
    assert matching_share("", "407") == 0.0
