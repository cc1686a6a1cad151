"""The settings of a plan: the batch, the device and the reward service, one record each.

Always true: a record obeys its rules and can be simulated. It holds plain values only, so that it can be sent to
another process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rewardflow.errors import InvalidInput
from rewardflow.flow.schedule import Placement, Schedule
from rewardflow.plan.named_schedules import SCHEDULES, check_schedules, min_steps
from rewardflow.reward.latency import Latency, from_quantiles, parse_latency
from rewardflow.reward.settings import split_options
from rewardflow.settings.rules import at_least, check_choices, within

# Limits that `service` sets, and limits that a simulation cannot use, such as those that need a disk.
_SET_BY_SERVICE = {"max_concurrency": "slots", "rpm": "rpm", "tpm": "tpm", "call_cost_usd": "price_usd"}
_NOT_SIMULATED = ("journal", "run_dir", "max_cost_usd", "workers", "processes", "endpoints")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSettings:
    """The device time of a step, in seconds."""

    generation_s: float  # generation of all rollouts of a step
    log_probs_s: float = 0.0  # forward passes without gradients, over all rollouts
    update_s: float  # forward and backward passes over all rollouts
    optimizer_s: float = 0.0  # one optimizer step; each mini-batch has one
    publish_s: float = 0.0  # the weight sync, and all else that happens once per step
    # when rollouts end, as shares of generation_s: evenly spaced quantiles, from the first rollout to the last
    rollouts_end: tuple[float, ...] = (0.0, 1.0)
    placement: Placement = "colocated"  # generation and training on one device, or on separate devices

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("generation_s", "log_probs_s", "update_s", "optimizer_s", "publish_s"):
            within(name, getattr(self, name), 0.0, math.inf)
        ends = self.rollouts_end
        if not ends or list(ends) != sorted(ends) or ends[0] < 0 or ends[-1] > 1:
            raise InvalidInput(f"rollouts_end must be shares between 0 and 1 that do not go down, got {list(ends)}")

    def scaled(self, factor: float) -> DeviceSettings:
        """Returns the times of a larger or smaller model with the same split of compute."""
        names = ("generation_s", "log_probs_s", "update_s", "optimizer_s", "publish_s")
        return replace(self, **{name: getattr(self, name) * factor for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """The reward service."""

    slots: int = 64  # concurrent calls
    rpm: float | None = None  # requests per minute that it allows
    tpm: float | None = None  # tokens per minute that it allows
    tokens: int = 0  # tokens of one call
    # seconds of one call: a name such as `uniform:1,40` (mock_judge.md lists them), or evenly spaced quantiles
    latency: str | tuple[float, ...] = "constant:1"
    failures: float = 0.0  # share of calls that fail with a retryable error
    price_usd: float = 0.0  # price of one answered call

    def __post_init__(self) -> None:
        at_least("slots", self.slots, 1)
        at_least("tokens", self.tokens, 0)
        for name in ("rpm", "tpm"):
            if getattr(self, name) is not None:
                within(name, getattr(self, name), 0.0, math.inf, low_open=True)
        if self.tpm is not None and not self.tokens:
            raise InvalidInput(f"tpm limits tokens, so tokens must say how many a call has, got tpm={self.tpm:g}")
        within("failures", self.failures, 0.0, 1.0)
        within("price_usd", self.price_usd, 0.0, math.inf)
        self.latency_function()

    def latency_function(self) -> Latency:
        """Returns the function from a random number in [0, 1) to the seconds of a call."""
        if isinstance(self.latency, str):
            return parse_latency(self.latency)
        quantiles = self.latency
        if not quantiles or list(quantiles) != sorted(quantiles) or quantiles[0] < 0 or quantiles[-1] == math.inf:
            raise InvalidInput(
                f"latency must be a name or quantiles of at least 0 that do not go down, got {list(quantiles)[:5]}"
            )
        return from_quantiles(quantiles)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """A published measurement, to compare with the simulated rows of the original recipe.

    The plan scales the device's times until its synchronous step takes as long as the published one.
    """

    name: str
    synchronous_s: float  # one step of the published synchronous loop
    changes: Mapping[str, float]  # by schedule: relative change against synchronous_s

    def __post_init__(self) -> None:
        within("synchronous_s", self.synchronous_s, 0.0, math.inf, low_open=True)
        check_schedules(tuple(self.changes))


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSettings:
    """Another tier of the same service: what differs from `service`."""

    name: str
    latency: str | tuple[float, ...]
    price_usd: float
    rpm: float | None = None  # null: as `service`
    failures: float | None = None  # null: as `service`

    def of(self, service: ServiceSettings) -> ServiceSettings:
        """Returns the service at this tier."""
        changed = {name: getattr(self, name) for name in ("rpm", "failures") if getattr(self, name) is not None}
        return replace(service, latency=self.latency, price_usd=self.price_usd, **changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """All settings of a plan."""

    prompts: int  # per step
    responses: int = 8  # per prompt
    mini_batches: int = 4  # per step
    micro_batches: int = 8  # per mini-batch
    device: DeviceSettings
    service: ServiceSettings = field(default_factory=ServiceSettings)
    limits: Mapping[str, Any] = field(default_factory=dict)  # more settings of the reward agent: settings.md
    steps: int = 100  # steps of the run whose time and cost the plan reports
    simulated_steps: int = 20  # how many of these are simulated under each schedule, at most: fewer if they are alike
    schedules: tuple[str, ...] = tuple(SCHEDULES)  # schedules to simulate; `synchronous` is always simulated
    as_original: bool = False  # also simulate the loop with the restrictions of the original recipe
    published: tuple[PublishedRun, ...] = ()  # published runs of the original recipe to compare with
    tiers: tuple[TierSettings, ...] = ()  # other tiers of the service, such as a cheaper and slower one, to compare
    seed: int = 0  # seed of latencies and failures

    def __post_init__(self) -> None:
        for tier in self.tiers:
            tier.of(self.service)  # raises if it breaks a rule
        if len({tier.name for tier in self.tiers}) < len(self.tiers):
            raise InvalidInput(f"tiers must have different names, got {', '.join(one.name for one in self.tiers)}")
        for name in ("prompts", "responses", "mini_batches", "micro_batches", "steps"):
            at_least(name, getattr(self, name), 1)
        check_schedules(self.schedules)
        for name in self.schedules:
            if self.simulated_steps < min_steps(name):
                raise InvalidInput(
                    f"simulated_steps must be at least {min_steps(name)} for {name}, whose pipeline fills and drains, "
                    f"got simulated_steps={self.simulated_steps}"
                )
        if self.published and not self.as_original:
            raise InvalidInput("published runs are compared with the rows of the original: as_original must be true")
        self._check_limits()
        self.schedule("synchronous")

    def _check_limits(self) -> None:
        for name, other in _SET_BY_SERVICE.items():
            if name in self.limits:
                raise InvalidInput(f"limits.{name} must be set as service.{other}")
        for name in _NOT_SIMULATED:
            if name in self.limits:
                raise InvalidInput(f"limits.{name} has no part in a simulation")
        split_options(self.limits)

    @property
    def calls_per_step(self) -> int:
        return self.prompts * self.responses

    def schedule(self, name: str) -> Schedule:
        stream, max_staleness = SCHEDULES[name]
        return Schedule(
            groups_per_step=self.prompts,
            mini_batches=self.mini_batches,
            stream=stream,
            max_staleness=max_staleness,
            placement=self.device.placement,
            min_group=min(2, self.responses),
        )
