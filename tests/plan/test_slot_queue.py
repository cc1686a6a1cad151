"""The queue of slots beside the real agent: the same times for the same plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardflow import clock
from rewardflow.errors import AgentHalted
from rewardflow.plan.named_schedules import SCHEDULES, SCHEDULES_OF_ORIGINAL, min_steps
from rewardflow.plan.settings import DeviceSettings, PlanSettings, ServiceSettings
from rewardflow.plan.simulate import SimulatedRun, simulate
from rewardflow.plan.slot_queue import SlotQueue, needs_only_slots
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


def moments(run: SimulatedRun) -> dict[str, object]:
    """Everything that the figures of a plan are computed from."""
    return {
        "steps": [(one.ended_s, one.duration_s, one.usage, one.staleness_max, one.num_scored) for one in run.reports],
        "calls": sorted(zip(run.calls.started_s, run.calls.ended_s, strict=True)),
        "work": run.worked,
        "refused": run.num_refused,
        "cost": pytest.approx(run.cost_usd),
    }


@settings(max_examples=15, deadline=None)
@given(plan=plans, name=st.sampled_from(list(SCHEDULES)))
def test_every_moment_of_a_simulation_is_the_real_agents(plan: PlanSettings, name: str) -> None:
    assert needs_only_slots(plan)
    steps = min_steps(name)
    assert moments(simulate(plan, name, steps=steps)) == moments(simulate(plan, name, steps=steps, with_agent=True))


@settings(max_examples=5, deadline=None)
@given(plan=plans, name=st.sampled_from(SCHEDULES_OF_ORIGINAL))
def test_it_is_also_with_the_restrictions_of_the_original(plan: PlanSettings, name: str) -> None:
    alone, real = (
        simulate(plan, name, steps=min_steps(name), as_original=True, with_agent=with_agent)
        for with_agent in (False, True)
    )
    assert moments(alone) == moments(real)


def test_a_plan_in_which_calls_can_fail_or_be_paced_is_simulated_with_the_agent() -> None:
    plain = PlanSettings(prompts=8, responses=2, device=DeviceSettings(generation_s=1.0, update_s=1.0))
    service = plain.service
    assert needs_only_slots(plain)
    for other in (replace(service, rpm=60.0), replace(service, tpm=60.0, tokens=1), replace(service, failures=0.1)):
        assert not needs_only_slots(replace(plain, service=other))
    assert not needs_only_slots(replace(plain, limits={"hedge_quantile": 0.9}))


def test_a_call_that_fails_ends_the_simulation_instead_of_leaving_it_waiting() -> None:
    class Broken:
        async def compute_score(self, rollout: Rollout) -> float:
            raise OSError("unplugged")

    async def run() -> None:
        async with SlotQueue(Broken(), slots=1) as queue:
            ticket = queue.open()
            ticket.submit(Rollout(group_id="0", response=""))
            with pytest.raises(AgentHalted, match="unplugged"):
                await ticket.take(1)

    clock.run(run())
