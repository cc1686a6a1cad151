"""Checks a run before it starts: whether it would start, what it needs, what it will cost.

Always true: nothing is loaded, trained or written; the reward is asked about one sample, outside of the run's journal
and ledger. A mistake that would stop the run from starting is raised; what the reward answers is reported, also if it
fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewardflow.data.prompt_set import PromptSet
from rewardflow.flow.device_thread import DeviceThread
from rewardflow.runtime.local import device_kind, device_of, make_engine, rehearse, rehearse_validation
from rewardflow.runtime.memory_estimate import MemoryEstimate, device_memory, estimate_memory, estimate_rank_memory
from rewardflow.runtime.memory_plan import complete_for
from rewardflow.runtime.on_ray.ray_runtime import check_cluster, rehearsed_here
from rewardflow.runtime.open_run import runtime_of
from rewardflow.runtime.prepare import RunStart, prepare
from rewardflow.runtime.reward_probe import SampleVerdict, ask_about_sample
from rewardflow.settings.chosen_correction import ChosenCorrection, chosen_correction
from rewardflow.settings.device_defaults import DeviceKind, left_to_device
from rewardflow.settings.run_settings import RunSettings

if TYPE_CHECKING:
    from rewardflow.policy.load_policy import Policy

MAX_PROMPTS_READ = 10_000  # of which each is turned into tokens; of a set that is larger, the first
PATIENCE_S = 120.0  # with the sample; a judge may take a minute
_MAX_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCheck:
    """How many prompts were read and are too long. `num_prompts` is None for tasks that are generated endlessly."""

    num_prompts: int | None
    num_read: int
    num_too_long: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPlan:
    """Calls to the reward. `most` counts all reserve groups (`schedule.refill`) as needed.

    The run's calls include those of all validations.
    """

    a_step: int
    most_a_step: int
    validation: int
    a_run: int
    most_a_run: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPlan:
    """What verdicts cost if each costs as much as the sample."""

    a_verdict_usd: float
    a_step_usd: float
    a_run_usd: float
    cap_usd: float | None = None  # limits.max_cost_usd of the run's settings

    @property
    def capped_at_step(self) -> int | None:
        """The step in which the run reaches its cap and ends; None if the cap is enough."""
        if self.cap_usd is None or self.a_run_usd <= self.cap_usd:
            return None
        return int(self.cap_usd / self.a_step_usd)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """The findings. `cost` is None where the price is unknown; a price of 0 is known."""

    sample: SampleVerdict
    prompts: PromptCheck
    memory: MemoryEstimate
    calls: CallPlan
    cost: CostPlan | None
    correction: ChosenCorrection
    device_kind: DeviceKind
    device_defaults: Mapping[str, Any]  # the keys that the settings leave to the device, and what they get
    pass_fits_bytes: int | None = None  # the memory to which the size of a pass was fitted; None: it was not

    @property
    def problem(self) -> str | None:
        """Why the sample has no score; None if it has one."""
        failure = self.sample.failure
        if self.sample.unreachable is not None:
            return f"no connection to {self.sample.unreachable}"
        if failure is not None:
            return f"{failure.kind}: {failure.error}"
        return None if self.sample.rewards else f"no answer within {PATIENCE_S:g} s"

    def to_json(self) -> dict[str, Any]:
        sample = self.sample
        return {
            "ok": self.problem is None,
            "sample": {
                "response": sample.rollouts[0].response[:_MAX_SHOWN_CHARS],
                "scores": [reward.value for reward in sample.rewards],
                "problem": self.problem,
                "calls": sample.num_calls,
                "elapsed_s": sample.elapsed_s,
                "cost_usd": sample.cost_usd,
                "tokens": sample.tokens,
            },
            "prompts": asdict(self.prompts),
            "memory": self.memory.to_json(),
            "calls": asdict(self.calls),
            "cost": None if self.cost is None else asdict(self.cost),
            "correction": asdict(self.correction),
            "device_defaults": {"kind": self.device_kind, **self.device_defaults},
            "pass_fits_bytes": self.pass_fits_bytes,
        }


async def preflight(start: RunStart, *, folder: Path | None = None) -> Preflight:
    """Checks a run that has passed `check_start`. The model is built without its weights."""
    settings = start.settings
    runtime_of(settings)  # raises if the settings do not fit where the run computes
    kind: DeviceKind | None = None
    prepared = prepare(start, folder=folder, writes=False)
    prompt_set = prepared.prompt_set
    if settings.runtime.kind == "ray":
        kind = check_cluster(settings)
    kind = kind or device_kind(settings)
    completed = await asyncio.to_thread(complete_for, settings, kind, _memory_to_fit(settings))
    chosen = left_to_device(settings, completed.settings, kind)
    settings = completed.settings
    here = rehearsed_here(settings) if settings.runtime.kind == "ray" else settings
    with DeviceThread("check") as thread:
        policy = await thread.run(lambda: rehearse(here, prompt_set))
        measured = await thread.run(lambda: rehearse_validation(here, policy, prepared.validation_set))
        prompts = await thread.run(lambda: _check_prompts(here, prompt_set, policy))
        memory = await thread.run(lambda: _memory(settings, policy))
    sample = await ask_about_sample(settings, prompt_set[0], folder=prepared.folder, patience_s=PATIENCE_S)
    num_groups = num_validated(settings, len(measured))
    return Preflight(
        sample=sample,
        prompts=prompts,
        memory=memory,
        calls=plan_calls(settings, sample.units, num_groups),
        cost=plan_cost(settings, sample, num_groups),
        correction=chosen_correction(settings),
        device_kind=kind,
        device_defaults=chosen,
        pass_fits_bytes=completed.fitted_to_bytes,
    )


def _memory_to_fit(settings: RunSettings) -> int | None:
    """Returns the memory of the device in this process. What ranks have is known when they start."""
    return None if settings.runtime.kind == "ray" else device_memory(device_of(settings))


def _memory(settings: RunSettings, policy: Policy) -> MemoryEstimate:
    if settings.runtime.kind == "ray":
        return estimate_rank_memory(settings, policy)
    return estimate_memory(settings, policy, device_of(settings))


def plan_calls(settings: RunSettings, units: tuple[str, ...], num_validated: int = 0) -> CallPlan:
    """Plans calls. `units` are of the rewards in the score: a reward that judges groups takes one call for each."""
    schedule = settings.schedule
    a_group = sum(1 if unit == "group" else settings.rollouts_per_group for unit in units)
    a_step = schedule.groups_per_step * a_group
    most_a_step = (schedule.groups_per_step + schedule.refill * (1 + schedule.refill_rounds)) * a_group
    of_prompt = 0 if settings.validation is None else settings.validation.rollouts
    validation = num_validated * sum(min(1, of_prompt) if unit == "group" else of_prompt for unit in units)
    return CallPlan(
        a_step=a_step,
        most_a_step=most_a_step,
        validation=validation,
        a_run=a_step * settings.steps + validation,
        most_a_run=most_a_step * settings.steps + validation,
    )


def num_validated(settings: RunSettings, num_prompts: int) -> int:
    """Returns the number of groups of all validations together, with `num_prompts` prompts each."""
    validation = settings.validation
    return 0 if validation is None else num_prompts * len(validation.occasions.versions(settings.steps))


def plan_cost(settings: RunSettings, sample: SampleVerdict, num_validated: int = 0) -> CostPlan | None:
    is_scored = sample.rewards and sample.failure is None
    if not sample.cost_usd and not (sample.is_priced and is_scored):
        return None
    a_verdict_usd = sample.cost_usd / len(sample.rollouts)
    a_step_usd = a_verdict_usd * settings.schedule.groups_per_step * settings.rollouts_per_group
    of_prompt = 0 if settings.validation is None else settings.validation.rollouts
    a_run_usd = a_step_usd * settings.steps + a_verdict_usd * num_validated * of_prompt
    cap_usd = settings.limits.get("max_cost_usd")
    return CostPlan(a_verdict_usd=a_verdict_usd, a_step_usd=a_step_usd, a_run_usd=a_run_usd, cap_usd=cap_usd)


def _check_prompts(settings: RunSettings, prompt_set: PromptSet, policy: Policy) -> PromptCheck:
    """Counts prompts that are too long; raises for one if the settings say so."""
    num_read = 1 if prompt_set.size is None else min(prompt_set.size, MAX_PROMPTS_READ)
    encoder = make_engine(settings, policy, DeviceThread("prompts")).encoder
    fitting = encoder.fit([prompt_set[number] for number in range(num_read)])
    return PromptCheck(num_prompts=prompt_set.size, num_read=num_read, num_too_long=fitting.num_filtered)
