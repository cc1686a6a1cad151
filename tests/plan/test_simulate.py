"""The simulation: closed forms where there are some, and what must hold whatever the settings."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardflow.flow.schedule import Schedule
from rewardflow.plan.floors import floors_of
from rewardflow.plan.named_schedules import SCHEDULES, SYNCHRONOUS, min_steps
from rewardflow.plan.settings import DeviceSettings, PlanSettings, ServiceSettings
from rewardflow.plan.simulate import simulate, simulate_step_s
from rewardflow.plan.simulated_figures import figures_of
from rewardflow.plan.simulated_parts import draw_step

CONSTANT = PlanSettings(
    prompts=8,
    responses=4,
    mini_batches=2,
    micro_batches=2,
    simulated_steps=11,
    device=DeviceSettings(generation_s=10.0, log_probs_s=2.0, update_s=6.0, optimizer_s=0.5, publish_s=1.0),
    service=ServiceSettings(slots=16, latency="constant:3"),
)


def step_s(plan: PlanSettings, name: str) -> float:
    run = simulate(plan, name, steps=max(plan.simulated_steps, min_steps(name)))
    return figures_of(run, plan, name, floors_of(plan)).row.step_s


def with_service(plan: PlanSettings, **changes: object) -> PlanSettings:
    return replace(plan, service=replace(plan.service, **changes))


def test_a_synchronous_step_of_constants_is_generation_service_and_compute() -> None:
    """All rollouts end with the generation: 32 calls in 16 slots are two rounds, which the log-probs are hidden in."""
    device = replace(CONSTANT.device, rollouts_end=(1.0,))
    assert step_s(replace(CONSTANT, device=device), SYNCHRONOUS) == pytest.approx(10.0 + 2 * 3.0 + 6.0 + 2 * 0.5 + 1.0)


def test_log_probs_longer_than_the_calls_stand_in_the_step_instead() -> None:
    device = replace(CONSTANT.device, rollouts_end=(1.0,), log_probs_s=9.0)
    assert step_s(replace(CONSTANT, device=device), SYNCHRONOUS) == pytest.approx(10.0 + 9.0 + 6.0 + 2 * 0.5 + 1.0)


def test_calls_that_start_while_rollouts_are_generated_leave_only_the_last_one_exposed() -> None:
    """The last rollout ends with the generation, and slots are free by then."""
    plan = with_service(replace(CONSTANT, device=replace(CONSTANT.device, log_probs_s=0.0)), slots=32)
    assert step_s(plan, SYNCHRONOUS) == pytest.approx(10.0 + 3.0 + 6.0 + 2 * 0.5 + 1.0)


def test_one_step_hides_the_service_behind_the_device_where_that_is_slower() -> None:
    assert step_s(CONSTANT, "one_step") == pytest.approx(floors_of(CONSTANT).compute_s)


def test_a_service_without_enough_slots_sets_the_step_whatever_is_overlapped() -> None:
    plan = with_service(CONSTANT, slots=1)
    assert floors_of(plan).floor_s == pytest.approx(32 * 3.0)
    for name in ("one_step", "pipeline_one_step", "stream_1", "staleness_2"):
        assert step_s(plan, name) == pytest.approx(32 * 3.0, rel=0.01)


def test_a_rate_limit_sets_the_step_and_is_never_met() -> None:
    plan = with_service(CONSTANT, rpm=30.0)
    run = simulate(plan, "pipeline_one_step", steps=7)
    assert run.num_refused == 0
    assert figures_of(run, plan, "pipeline_one_step", floors_of(plan)).row.step_s == pytest.approx(64.0, rel=0.01)
    assert figures_of(run, plan, "pipeline_one_step", floors_of(plan)).row.binding == "rate_limit"


def test_a_limit_on_tokens_counts_those_of_each_call() -> None:
    plan = with_service(CONSTANT, tpm=3000.0, tokens=100)
    assert floors_of(plan).rate_s == pytest.approx(64.0)
    assert step_s(plan, "pipeline_one_step") == pytest.approx(64.0, rel=0.05)


def test_two_devices_work_beside_each_other() -> None:
    plan = replace(CONSTANT, device=replace(CONSTANT.device, placement="separate", generation_s=9.0))
    together_s = floors_of(replace(CONSTANT, device=replace(CONSTANT.device, generation_s=9.0))).compute_s
    assert floors_of(plan).compute_s == pytest.approx(9.0 + 1.0)
    assert step_s(plan, "staleness_2") < together_s


def test_staleness_is_what_the_schedule_says() -> None:
    for name, (_, max_staleness) in SCHEDULES.items():
        run = simulate(CONSTANT, name, steps=min_steps(name))
        assert max(report.staleness_max or 0 for report in run.reports) == max_staleness


def test_failed_calls_are_asked_again_and_paid_for_when_they_are_answered() -> None:
    plan = with_service(CONSTANT, failures=0.2, price_usd=0.5)
    run = simulate(plan, "pipeline", steps=4)
    num_verdicts = 4 * plan.calls_per_step
    assert len(run.calls.started_s) > num_verdicts
    assert run.cost_usd == pytest.approx(0.5 * sum(report.num_scored for report in run.reports))


def test_the_agents_own_settings_count() -> None:
    plan = replace(with_service(CONSTANT, failures=0.3), limits={"max_attempts": 1})
    run = simulate(plan, SYNCHRONOUS, steps=4)
    assert len(run.calls.started_s) == 4 * plan.calls_per_step
    assert sum(sum(report.failed.values()) for report in run.reports) > 0


def test_as_the_original_a_batch_of_which_calls_were_given_up_still_lets_the_next_one_start() -> None:
    """With four in ten failing, groups become hopeless, and their other calls are cancelled while they wait."""
    plan = with_service(CONSTANT, failures=0.4, slots=2)
    reports = simulate(plan, "pipeline_one_step", steps=5, as_original=True).reports
    assert len(reports) == 5
    assert sum(report.failed.get("cancelled", 0) for report in reports) > 0


class ByCompletion(PlanSettings):
    """The same plan with mini-batches in the order of verdicts."""

    def schedule(self, name: str) -> Schedule:
        return PlanSettings.schedule(self, name).changed(order="completion")


@pytest.mark.parametrize("name", ["pipeline", "pipeline_one_step"])
@pytest.mark.parametrize(("slots", "most"), [(256, 1.03), (1024, 1.07)])
def test_mini_batches_in_the_order_of_prompts_cost_hardly_any_time(slots: int, most: float, name: str) -> None:
    """The original's sizes and delays. The agent works in the order of prompts, so early groups come first anyway."""
    by_prompts_s, by_completion_s = (
        simulate_step_s(
            kind(
                prompts=1024,
                responses=5,
                mini_batches=4,
                device=DeviceSettings(generation_s=79.0, log_probs_s=20.0, update_s=100.0),
                service=ServiceSettings(slots=slots, latency="uniform:1,40"),
            ),
            name,
            counted=1,
        )
        for kind in (PlanSettings, ByCompletion)
    )
    assert by_prompts_s <= most * by_completion_s


def test_a_simulation_is_the_same_every_time() -> None:
    plan = with_service(CONSTANT, latency="lognormal:3,1", failures=0.1)
    ends = [[report.ended_s for report in simulate(plan, "stream_1", steps=5).reports] for _ in range(2)]
    assert ends[0] == ends[1]


def test_steps_of_many_calls_differ_by_chance_only_a_little() -> None:
    """Each sixteenth of the latencies gets its exact share of the calls, in a random order."""
    steps = [draw_step(f"0 {number}", 5120) for number in range(4)]
    for draws in steps:
        assert set(Counter(int(16 * draw) for draw in draws.latency).values()) == {320}
        assert fmean(draws.latency) == pytest.approx(0.5, abs=0.001)
        assert fmean(draws.failure) == pytest.approx(0.5, abs=0.02)
    assert len({tuple(draws.latency) for draws in steps}) == 4


@pytest.mark.parametrize("num_calls", [8, 512])
def test_the_slowest_call_of_a_step_is_as_slow_as_chance_makes_it(num_calls: int) -> None:
    """The mean of the largest of n random numbers is n / (n + 1), and a synchronous step waits for the largest."""
    slowest = [max(draw_step(f"{seed} 0", num_calls).latency) for seed in range(1000)]
    assert 1 - fmean(slowest) == pytest.approx(1 / (num_calls + 1), rel=0.1)


plans = st.builds(
    lambda prompts, responses, generation_s, update_s, log_probs_s, slots, latency: PlanSettings(
        prompts=4 * prompts,
        responses=responses,
        mini_batches=4,
        micro_batches=2,
        simulated_steps=11,
        device=DeviceSettings(generation_s=generation_s, update_s=update_s, log_probs_s=log_probs_s),
        service=ServiceSettings(slots=slots, latency=latency),
    ),
    prompts=st.integers(1, 3),
    responses=st.integers(1, 4),
    generation_s=st.floats(0.0, 50.0),
    update_s=st.floats(0.0, 50.0),
    log_probs_s=st.floats(0.0, 10.0),
    slots=st.integers(1, 40),
    latency=st.sampled_from(["constant:3", "uniform:1,9", "exponential:4", "bimodal:1,30,0.1"]),
)


@settings(max_examples=40, deadline=None)
@given(plan=plans, name=st.sampled_from(list(SCHEDULES)))
def test_no_run_is_shorter_than_its_floor(plan: PlanSettings, name: str) -> None:
    """With the latencies as they were drawn: the device has all of its work to do, and so have the slots."""
    run = simulate(plan, name, steps=min_steps(name))
    duration_s = run.reports[-1].ended_s
    flown_s = run.calls.flown_s(0.0, duration_s)
    assert duration_s >= len(run.reports) * floors_of(plan).compute_s * (1 - 1e-9)
    assert duration_s >= flown_s / plan.service.slots * (1 - 1e-9)
    assert max((level for _, level in run.calls.in_flight(0.0, duration_s)), default=0) <= plan.service.slots


@settings(max_examples=40, deadline=None)
@given(plan=plans, name=st.sampled_from(list(SCHEDULES)), more=st.integers(1, 40), latency_s=st.floats(0.1, 20.0))
def test_more_slots_never_make_a_run_slower_when_all_calls_take_as_long(
    plan: PlanSettings, name: str, more: int, latency_s: float
) -> None:
    plan = with_service(plan, latency=f"constant:{latency_s}")
    steps = min_steps(name)
    before_s = simulate(plan, name, steps=steps).reports[-1].ended_s
    after_s = simulate(with_service(plan, slots=plan.service.slots + more), name, steps=steps).reports[-1].ended_s
    assert after_s <= before_s * (1 + 1e-9)
