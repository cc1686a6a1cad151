"""Log-probs and values come from the right weights, for every rollout that trains."""

from typing import Any

import pytest
from flow.fake_run import FakeRun, judge_of

from rewardflow.flow.fakes import FakeGenerator, FakeTrainer
from rewardflow.flow.records import Boundary
from rewardflow.flow.schedule import Schedule


def test_old_log_probs_are_of_the_weights_before_the_first_update_and_behaviour_of_those_that_generated() -> None:
    schedule = Schedule(groups_per_step=4, mini_batches=2, stream="mini_batch", max_staleness=1)
    run = FakeRun(schedule, judge_of(3), takes_behaviour=True, takes_reference=True).run(steps=4)
    for batch in run.trainer.batches:
        for sample in batch.samples:
            assert sample.precomputed.old == ("policy", 2 * batch.step)
            assert sample.precomputed.behaviour == ("policy", 2 * (sample.rollout.policy_version or 0))
            assert sample.precomputed.reference[0] == "reference"


@pytest.mark.parametrize(
    ("when", "mini_batches", "is_taken"),
    [
        ("with_several_updates", 1, False),
        ("with_several_updates", 2, True),
        ("always", 1, True),
        ("never", 2, False),
    ],
)
def test_old_log_probs_are_taken_only_if_loss_or_advantages_compare_with_them(
    when: Any, mini_batches: int, is_taken: bool
) -> None:
    schedule = Schedule(groups_per_step=4, mini_batches=mini_batches)
    run = FakeRun(schedule, judge_of(3), old_log_probs=when).run(steps=1)
    old = {sample.precomputed.old for batch in run.trainer.batches for sample in batch.samples}
    assert old == {("policy", 0) if is_taken else None}


@pytest.mark.parametrize("stream", ["batch", "mini_batch", "micro_batch"])
def test_values_are_taken_before_a_steps_first_update_while_verdicts_are_out(stream: Any) -> None:
    schedule = Schedule(groups_per_step=4, mini_batches=2, stream=stream, max_staleness=1)
    trainer = FakeTrainer(log_probs_s=0.01)
    run = FakeRun(schedule, judge_of(3), trainer=trainer, critic=trainer).run(steps=3)
    precomputed = {(b.step, s.precomputed.values, s.precomputed.old) for b in run.trainer.batches for s in b.samples}
    assert precomputed == {(step, ("values", 2 * step), ("policy", 2 * step)) for step in range(3)}
    assert all(report.usage.hidden_s > 0 for report in run.reports)


def test_values_of_reserves_that_came_later_are_taken_too() -> None:
    async def compute_score(data_source: str, solution_str: str, ground_truth: str) -> float:
        prompt, index = map(int, solution_str.split("."))
        return 1.0 if prompt < 4 else float(index)

    schedule = Schedule(groups_per_step=4, refill=2, refill_rounds=2, drop_equal_scores=True)
    trainer = FakeTrainer()
    run = FakeRun(schedule, compute_score, trainer=trainer, critic=trainer).run(steps=1)
    samples = [sample for batch in run.trainer.batches for sample in batch.samples]
    assert {sample.precomputed.values for sample in samples} == {("values", 0)}
    assert run.reports[0].num_groups == 4


def test_a_run_that_goes_on_takes_the_reference_log_probs_that_were_not_taken_when_it_was_saved() -> None:
    """On separate devices, a step may be published while log-probs of another are being computed."""

    async def note(boundary: Boundary) -> None:
        boundaries.append(boundary)

    schedule = Schedule(groups_per_step=6, max_staleness=1, placement="separate", order="fixed")
    boundaries: list[Boundary] = []
    slow = FakeGenerator(rollout_s=60.0)  # publishing waits for it, and comes right after
    first = FakeRun(schedule, judge_of(0), generator=slow, takes_reference=True)
    first.at_boundary = note
    first.run(steps=3)
    precomputed = [
        one.precomputed.reference is not None for saved in boundaries[0].open_steps for one in saved.rollouts
    ]
    assert set(precomputed) == {True, False}
    second = FakeRun(schedule, judge_of(0), takes_reference=True)
    second.prompts.num_made = 12
    second.start = boundaries[0]
    second.run(steps=3)
    samples = [sample for batch in second.trainer.batches for sample in batch.samples]
    assert len(samples) == 48
    assert all(sample.precomputed.reference is not None for sample in samples)
