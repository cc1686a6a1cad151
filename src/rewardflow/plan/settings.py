"""What a plan is made of: a batch, a device, a reward service. One record each, with its defaults and rules.

Always true: a record that exists obeys its rules and can be simulated; it holds plain values only, so that it can be
sent to another process.
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

# What `service` says already; of the agent's other settings, those that need a disk have no place in a simulation.
_SAID_ELSEWHERE = {"max_concurrency": "slots", "rpm": "rpm", "tpm": "tpm", "call_cost_usd": "price_usd"}
_NOT_SIMULATED = ("journal", "run_dir", "max_cost_usd", "workers", "processes", "endpoints")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSettings:
    """What a step asks of the device, in seconds."""

    generation_s: float  # all rollouts of a step
    log_probs_s: float = 0.0  # forward passes that only look, over all rollouts
    update_s: float  # forward and backward over all rollouts
    optimizer_s: float = 0.0  # one optimizer step, of which there is one for each mini-batch
    publish_s: float = 0.0  # new weights to the generator, and whatever else comes once a step
    # when rollouts end, as shares of generation_s: evenly spaced quantiles, from the first to the last
    rollouts_end: tuple[float, ...] = (0.0, 1.0)
    placement: Placement = "colocated"  # generation and training on one device, or each on its own

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("generation_s", "log_probs_s", "update_s", "optimizer_s", "publish_s"):
            within(name, getattr(self, name), 0.0, math.inf)
        ends = self.rollouts_end
        if not ends or list(ends) != sorted(ends) or ends[0] < 0 or ends[-1] > 1:
            raise InvalidInput(f"rollouts_end must be shares between 0 and 1 that do not go down, got {list(ends)}")

    def scaled(self, factor: float) -> DeviceSettings:
        """Another model, with the same split of compute."""
        names = ("generation_s", "log_probs_s", "update_s", "optimizer_s", "publish_s")
        return replace(self, **{name: getattr(self, name) * factor for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """The reward service."""

    slots: int = 64  # calls at once
    rpm: float | None = None  # requests a minute that it allows
    tpm: float | None = None  # tokens a minute that it allows
    tokens: int = 0  # of one call
    # of one call, in seconds: a name such as `uniform:1,40` (mock_judge.md has them all), or evenly spaced quantiles
    latency: str | tuple[float, ...] = "constant:1"
    failures: float = 0.0  # share of calls that end in an error that may be retried
    price_usd: float = 0.0  # of one call that is answered

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
        """From a number in [0, 1) to seconds."""
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
    """Somebody's measured run, to hold the rows as the original against.

    The device's times are scaled until the synchronous step takes as long as theirs.
    """

    name: str
    synchronous_s: float  # a step of their synchronous loop
    changes: Mapping[str, float]  # by schedule, against that

    def __post_init__(self) -> None:
        within("synchronous_s", self.synchronous_s, 0.0, math.inf, low_open=True)
        check_schedules(tuple(self.changes))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """Everything that is simulated."""

    prompts: int  # a step
    responses: int = 8  # a prompt
    mini_batches: int = 4  # a step
    micro_batches: int = 8  # a mini-batch
    device: DeviceSettings
    service: ServiceSettings = field(default_factory=ServiceSettings)
    limits: Mapping[str, Any] = field(default_factory=dict)  # other settings of the reward agent: settings.md
    steps: int = 100  # of the run whose time and money are told
    simulated_steps: int = 20  # of these, how many are simulated under each schedule
    schedules: tuple[str, ...] = tuple(SCHEDULES)  # which to simulate; `synchronous` always is
    as_original: bool = False  # also simulate the loop with the restraints of the original
    published: tuple[PublishedRun, ...] = ()  # measured runs of the original to compare with
    seed: int = 0  # of latencies and failures

    def __post_init__(self) -> None:
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
            raise InvalidInput("published runs are held against the rows as the original: as_original must be true")
        self._check_limits()
        self.schedule("synchronous")

    def _check_limits(self) -> None:
        for name, other in _SAID_ELSEWHERE.items():
            if name in self.limits:
                raise InvalidInput(f"limits.{name} must be said as service.{other}")
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
