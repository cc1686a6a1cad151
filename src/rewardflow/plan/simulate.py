"""Simulates a run: runs the loop and the agent under one schedule, on a virtual clock.

Always true: the loop is the same code that trains, and so is the agent, except where a test shows that its queue alone
gives the same times (`slot_queue.py`). A simulation depends only on its settings, so that it gives
the same figures every time and in any process.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

from rewardflow import clock
from rewardflow.errors import InvalidInput, ServiceOutage
from rewardflow.flow.fakes import CentredScores, FakePrompts
from rewardflow.flow.flow_parts import FlowParts
from rewardflow.flow.protocols import Generator
from rewardflow.flow.reports import StepReport
from rewardflow.flow.run import Flow
from rewardflow.flow.schedule import Schedule
from rewardflow.observe.events import DeviceWorked, EventList
from rewardflow.plan.named_schedules import num_edge_steps
from rewardflow.plan.original_recipe import OriginalThreadPool, WholeBatchGenerator
from rewardflow.plan.settings import PlanSettings
from rewardflow.plan.simulated_parts import CallLog, SimulatedGenerator, SimulatedReward, SimulatedTrainer
from rewardflow.plan.slot_queue import OneBatchSlots, SharedSlots, SlotQueue, needs_only_slots
from rewardflow.reward.agent import RewardAgent


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """The record of one simulated run."""

    reports: tuple[StepReport, ...]
    worked: tuple[DeviceWorked, ...]
    calls: CallLog
    num_refused: int  # calls that the service's rate limit refused
    cost_usd: float


def simulate(
    settings: PlanSettings,
    name: str,
    *,
    steps: int,
    as_original: bool = False,
    reports_wanted: int | None = None,
    with_agent: bool = False,
) -> SimulatedRun:
    """Trains this many steps under the named schedule; stops after `reports_wanted` of them, if given.

    `with_agent` runs the whole agent also where its queue of slots alone gives the same times.
    """
    try:
        return clock.run(_simulate(settings, name, steps, as_original, reports_wanted, with_agent), seed=settings.seed)
    except ServiceOutage as outage:
        raise InvalidInput(
            f"a planned run must finish, and under {name} it did not: with "
            f"failures={settings.service.failures:g} the service was out for longer than "
            f"limits.outage_give_up_s, after which a run gives up"
        ) from outage


def simulate_step_s(settings: PlanSettings, name: str, *, counted: int, as_original: bool = False) -> float:
    """Returns the mean time of a step, over `counted` of them. Ends the simulation there: it need not drain."""
    edge = num_edge_steps(name)
    num_reports = edge + counted
    run = simulate(settings, name, steps=num_reports + edge, as_original=as_original, reports_wanted=num_reports)
    return (run.reports[num_reports - 1].ended_s - run.reports[edge - 1].ended_s) / counted


class _Enough(Exception):
    """Ends a simulation early."""


async def _simulate(
    settings: PlanSettings, name: str, steps: int, as_original: bool, reports_wanted: int | None, with_agent: bool
) -> SimulatedRun:
    reward = SimulatedReward(settings)
    schedule = settings.schedule(name)
    generator: Generator = SimulatedGenerator(settings.device)
    if as_original:
        generator = WholeBatchGenerator(generator)
        schedule = schedule.changed(order="completion")
    rewards = (
        _slot_queue(settings, reward, as_original)
        if needs_only_slots(settings) and not with_agent
        else _agent(settings, reward, schedule, as_original)
    )
    sink, reports = EventList(), list[StepReport]()

    def on_step(report: StepReport) -> None:
        reports.append(report)
        if len(reports) == reports_wanted:
            raise _Enough

    async with rewards as agent:
        parts = FlowParts(
            schedule=schedule,
            prompts=FakePrompts(),
            generator=generator,
            agent=agent,
            trainer=SimulatedTrainer(settings.device, calls_per_step=settings.calls_per_step),
            advantages=CentredScores(),
            group_size=settings.responses,
            micro_batch_tokens=_rollouts_in_micro_batch(settings),
            # With one update per step there are no old log-probs; log_probs_s is then the time of the reference's.
            takes_reference=not schedule.has_several_updates and settings.device.log_probs_s > 0,
        )
        with contextlib.suppress(_Enough):
            await Flow(parts, on_step=on_step, sink=sink).run(steps=steps)
        await asyncio.sleep(0)
    calls = agent.calls() if isinstance(agent, SlotQueue) else reward.calls
    num_refused, cost_usd = _refused_and_cost_usd(agent, calls, settings)
    return SimulatedRun(
        reports=tuple(reports),
        worked=tuple(sink.of(DeviceWorked)),
        calls=calls,
        num_refused=num_refused,
        cost_usd=cost_usd,
    )


def _slot_queue(settings: PlanSettings, reward: SimulatedReward, as_original: bool) -> SlotQueue:
    num_slots, calls_per_step = settings.service.slots, settings.calls_per_step
    slots = (
        OneBatchSlots(num_slots, calls_per_step=calls_per_step, seed=settings.seed)
        if as_original
        else SharedSlots(num_slots)
    )
    return SlotQueue(reward.latency_s, slots, price_usd=settings.service.price_usd)


def _agent(settings: PlanSettings, reward: SimulatedReward, schedule: Schedule, as_original: bool) -> RewardAgent:
    options = _agent_options(settings)
    if not as_original:
        return RewardAgent(reward, **options)
    pool = OriginalThreadPool(
        reward, slots=settings.service.slots, calls_per_step=settings.calls_per_step, seed=settings.seed
    )
    options |= {"max_concurrency": settings.calls_per_step * schedule.max_steps_open + 1, "max_attempts": 1}
    return RewardAgent(pool, **options)


def _refused_and_cost_usd(agent: RewardAgent | SlotQueue, calls: CallLog, settings: PlanSettings) -> tuple[int, float]:
    if isinstance(agent, SlotQueue):
        return 0, len(calls.started_s) * settings.service.price_usd
    statistics = agent.statistics()
    num_refused = sum(account.governors.pace.num_limited for account in statistics.accounts)
    return num_refused, statistics.ledger.spent_usd + statistics.ledger.uncertain_usd


def _agent_options(settings: PlanSettings) -> dict[str, Any]:
    service = settings.service
    return {
        "timeout_s": None,
        **settings.limits,
        "max_concurrency": service.slots,
        "rpm": service.rpm,
        "tpm": service.tpm,
        "call_cost_usd": service.price_usd or None,
    }


def _rollouts_in_micro_batch(settings: PlanSettings) -> int:
    in_mini_batch = settings.calls_per_step // settings.mini_batches
    return max(1, -(-in_mini_batch // settings.micro_batches))
