"""One of an agent's rewards: the code to call, its weight, and the account whose limits hold for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from rewardflow.errors import InvalidInput
from rewardflow.reward.code.reward_forms import RewardLike
from rewardflow.reward.code.scorer import Scorer
from rewardflow.reward.code.source import RewardSource
from rewardflow.reward.groups.local_decision import LocalDecider
from rewardflow.reward.settings import LIMIT_NAMES, LimitOptions, check_names
from rewardflow.types import EMPTY

if TYPE_CHECKING:
    from rewardflow.reward.groups.job import Job


@dataclass(frozen=True, slots=True)
class Weighted:
    """A reward as one part of a weighted sum.

    `limits` override the agent's own for this reward. Rewards with the same `account` share one limiter; by default
    each has its own, so that a slow judge does not delay a rule.
    """

    reward: RewardLike
    weight: float = 1.0
    name: str | None = None
    reward_kwargs: Mapping[str, Any] = field(default=EMPTY, repr=False)  # may hold keys
    account: str | None = None
    limits: LimitOptions | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.weight):
            raise InvalidInput(f"weight must be a finite number, got weight={self.weight!r}")
        check_names(self.limits or {}, LIMIT_NAMES)


class CallMaker(Protocol):
    """Makes the calls of jobs and resolves each once: a `Dispatcher` here, or a host that several processes share."""

    def add(self, job: Job) -> None:
        """Takes a job that needs a call."""

    def prune(self) -> None:
        """Drops jobs that were resolved without it."""

    def drain(self) -> None:
        """Starts no more calls."""

    def saving(self) -> None:
        """Says that a verdict is on its way to the journal."""

    def saved(self, job: Job, cost_usd: float) -> None:
        """Says that a job's verdict is in the journal; `cost_usd` is the part of its cost that is on disk now."""


@dataclass(frozen=True, slots=True)
class Component:
    """A weighted reward at run time."""

    name: str
    weight: float
    scorer: Scorer
    dispatcher: CallMaker
    decider: LocalDecider | None = None  # for a reward that may need no call


def as_parts(reward: RewardLike | Weighted | Sequence[Weighted], reward_kwargs: Mapping[str, Any]) -> list[Weighted]:
    """Returns one reward or several as a list of parts, and checks that their names differ."""
    if isinstance(reward, Weighted):
        parts = [reward]
    elif isinstance(reward, list | tuple):
        parts = list(reward)
        for part in parts:
            if not isinstance(part, Weighted):
                raise InvalidInput(f"a list of rewards must hold rewardflow.Weighted, got {type(part).__name__}")
        if not parts:
            raise InvalidInput("at least one reward is needed, got an empty list")
    else:
        return [Weighted(cast("RewardLike", reward), reward_kwargs=reward_kwargs)]
    if reward_kwargs:
        raise InvalidInput("reward_kwargs of a weighted reward must be in its Weighted(reward_kwargs=...)")
    names = [part_name(part) for part in parts]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InvalidInput(f"weighted rewards need distinct names, got {', '.join(repeated)} more than once; set name=")
    return parts


def part_name(part: Weighted) -> str:
    return part.name or RewardSource.of(part.reward, part.reward_kwargs).name
