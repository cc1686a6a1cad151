"""The queue of slots beside the real agent: the same times for the same plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardflow import clock
from rewardflow.errors import FlowError
from rewardflow.flow.device_usage import UsageTotals
from rewardflow.plan.named_schedules import SCHEDULES, SCHEDULES_OF_ORIGINAL, min_steps
from rewardflow.plan.settings import DeviceSettings, PlanSettings, ServiceSettings
from rewardflow.plan.simulate import SimulatedRun, simulate
from rewardflow.plan.slot_queue import SharedSlots, SlotQueue, needs_only_slots
from rewardflow.types import Rollout

plans = st.builds(
    lambda prompts, responses, generation_s, update_s, slots, latency, placement, seed: PlanSettings(
        prompts=4 * prompts,
        responses=responses,
        mini_batches=4,
        micro_batches=2,
        device=DeviceSettings(
            generation_s=generation_s, update_s=update_s, log_probs_s=1.0, publish_s=0.5, placement=placement
        ),
        service=ServiceSettings(slots=slots, latency=latency, price_usd=0.25),
        seed=seed,
    ),
    prompts=st.integers(1, 3),
    responses=st.integers(1, 4),
    generation_s=st.floats(0.0, 50.0),
    update_s=st.floats(0.0, 50.0),
    slots=st.integers(1, 60),
    latency=st.sampled_from(["constant:0", "constant:3", "uniform:1,9", "exponential:4", "bimodal:1,30,0.1"]),
    placement=st.sampled_from(["colocated", "separate"]),
    seed=st.integers(0, 9),
)


def assert_same_moments(one: SimulatedRun, other: SimulatedRun) -> None:
    """Compares all that the figures of a plan are computed from. Sums of seconds differ in their last digits."""
    (counts, seconds), (other_counts, other_seconds) = moments(one), moments(other)
    assert counts == other_counts
    assert seconds == pytest.approx(other_seconds, rel=1e-9, abs=1e-9)


def moments(run: SimulatedRun) -> tuple[list[object], list[float]]:
    """Returns what must be equal, and what must be equal but for rounding."""
    steps = [(one.staleness_max, one.num_scored, one.dropped, one.failed) for one in run.reports]
    works = [(one.device, one.work, one.step) for one in run.worked]
    seconds = [
        *(second for one in run.reports for second in (one.ended_s, one.duration_s, *usage_s(one.usage))),
        *(second for call in sorted(zip(run.calls.started_s, run.calls.ended_s, strict=True)) for second in call),
        *(second for one in run.worked for second in (one.started_s, one.at_s)),
    ]
    return [steps, works, run.num_refused], [*seconds, run.cost_usd]


def usage_s(usage: UsageTotals) -> list[float]:
    return [*(usage.busy_s[name] for name in sorted(usage.busy_s)), usage.exposed_s, usage.hidden_s]


@settings(max_examples=15, deadline=None)
@given(plan=plans, name=st.sampled_from(list(SCHEDULES)))
def test_every_moment_of_a_simulation_is_the_real_agents(plan: PlanSettings, name: str) -> None:
    assert needs_only_slots(plan)
    steps = min_steps(name)
    assert_same_moments(simulate(plan, name, steps=steps), simulate(plan, name, steps=steps, with_agent=True))


@settings(max_examples=5, deadline=None)
@given(plan=plans, name=st.sampled_from(list(SCHEDULES)))
def test_it_is_also_where_a_simulation_ends_with_calls_out(plan: PlanSettings, name: str) -> None:
    early, real = (
        simulate(plan, name, steps=min_steps(name) + 3, reports_wanted=min_steps(name), with_agent=with_agent)
        for with_agent in (False, True)
    )
    assert_same_moments(early, real)


@settings(max_examples=5, deadline=None)
@given(plan=plans, name=st.sampled_from(SCHEDULES_OF_ORIGINAL))
def test_it_is_also_with_the_restrictions_of_the_original(plan: PlanSettings, name: str) -> None:
    alone, real = (
        simulate(plan, name, steps=min_steps(name), as_original=True, with_agent=with_agent)
        for with_agent in (False, True)
    )
    assert_same_moments(alone, real)


def test_a_plan_in_which_calls_can_fail_or_be_paced_is_simulated_with_the_agent() -> None:
    plain = PlanSettings(prompts=8, responses=2, device=DeviceSettings(generation_s=1.0, update_s=1.0))
    service = plain.service
    assert needs_only_slots(plain)
    for other in (replace(service, rpm=60.0), replace(service, tpm=60.0, tokens=1), replace(service, failures=0.1)):
        assert not needs_only_slots(replace(plain, service=other))
    assert not needs_only_slots(replace(plain, limits={"hedge_quantile": 0.9}))


def test_a_rollout_that_would_overtake_planned_calls_is_refused() -> None:
    async def run() -> None:
        async with SlotQueue(lambda rollout: 1.0, SharedSlots(1)) as queue:
            ticket = queue.open()
            ticket.submit(Rollout(group_id="1", response="", step=1))
            with pytest.raises(FlowError, match="in the order of the queue"):
                ticket.submit(Rollout(group_id="0", response="", step=0))

    clock.run(run())
