"""A group that is not delivered yet: its rollouts, its verdicts, and when it is complete.

Always true: `rollouts[i]` and every column's `rewards[i]` belong to index i; a group is complete when all its
rollouts were submitted and every column (one for each reward) has a verdict for each of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from rewardflow.errors import InvalidInput
from rewardflow.types import FailureKind, Reward, Rollout, ScoredGroup

if TYPE_CHECKING:
    from rewardflow.reward.component import Component
    from rewardflow.reward.groups.job import Job
    from rewardflow.reward.ticket import Ticket


T = TypeVar("T")


class Note(NamedTuple):
    """Times of a verdict for events and logs: how long its call waited to start, and when it came."""

    waited_s: float
    landed_unix_s: float


_NO_NOTE = Note(0.0, 0.0)


class VerdictColumn:
    """The verdicts of one reward on one group."""

    __slots__ = ("is_called", "is_closed", "is_final", "num_in", "rewards")

    def __init__(self, size: int, judges_groups: bool) -> None:
        self.rewards: list[Reward | None] = [None] * size
        self.num_in = 0
        self.is_called = not judges_groups  # a reward that judges whole groups is called when the group is whole
        self.is_closed = False  # all verdicts are in; post-processing may still run
        self.is_final = False


class PendingGroup:
    __slots__ = (
        "columns",
        "due_step",
        "group_id",
        "is_delivered",
        "jobs",
        "notes",
        "num_expected",
        "num_in",
        "number",
        "position",
        "rollouts",
        "size",
        "step",
        "submitted_s",
        "ticket",
    )

    def __init__(
        self, rollout: Rollout, number: int, ticket: Ticket, judges_groups: Sequence[bool], now: float
    ) -> None:
        self.step = rollout.step
        self.due_step = rollout.step if ticket.due_step is None else ticket.due_step
        self.group_id = rollout.group_id
        self.size = self.num_expected = rollout.group_size
        self.number = number
        self.position = rollout.position
        self.ticket = ticket
        self.rollouts: list[Rollout | None] = [None] * self.size
        self.num_in = 0
        self.columns = tuple([VerdictColumn(self.size, sees_group) for sees_group in judges_groups])
        self.jobs: list[Job] = []
        self.submitted_s = now
        self.is_delivered = False
        self.notes: dict[int, Note] = {}

    @property
    def is_whole(self) -> bool:
        """Whether no more rollouts are expected."""
        return self.num_in == self.num_expected

    @property
    def num_outstanding(self) -> int:
        """The number of verdicts still to come from calls that can be made now."""
        return sum(self.num_in - column.num_in for column in self.columns if column.is_called)

    @property
    def has_started(self) -> bool:
        """Whether a call was made for any of its rollouts."""
        return any(job.started_s >= 0 for job in self.jobs)

    def missing(self) -> tuple[int, ...]:
        """Returns the indices not submitted yet."""
        return () if self.is_whole else tuple(i for i, rollout in enumerate(self.rollouts) if rollout is None)

    def put(self, rollout: Rollout) -> None:
        """Adds a rollout; raises `InvalidInput` if it does not fit the others."""
        if self.num_expected != self.size:
            raise InvalidInput(f"group {self.group_id!r} of step {self.step} was cancelled and takes no more rollouts")
        if rollout.group_size != self.size or self.rollouts[rollout.index] is not None:
            where = f"group {self.group_id!r} of step {self.step}"
            if rollout.group_size != self.size:
                raise InvalidInput(
                    f"a group must have one group_size, got {self.size} and {rollout.group_size} in {where}"
                )
            raise InvalidInput(f"an index may be submitted once, got index={rollout.index} twice in {where}")
        self.rollouts[rollout.index] = rollout
        self.num_in += 1

    def take_out(self, rollout: Rollout) -> None:
        self.rollouts[rollout.index] = None
        self.num_in -= 1

    def note(self, rollout: Rollout) -> Note:
        return self.notes.get(rollout.index, _NO_NOTE)

    def members(self) -> tuple[Rollout, ...]:
        return tuple(rollout for rollout in self.rollouts if rollout is not None)

    def cut_short(self, reward: Reward) -> None:
        """Expects no more rollouts, and gives this verdict to each rollout for which no job exists."""
        self.num_expected = self.num_in
        covered = {(job.column, rollout.index) for job in self.jobs for rollout in job.rollouts}
        for number, column in enumerate(self.columns):
            for rollout in self.members():
                if column.rewards[rollout.index] is None and (number, rollout.index) not in covered:
                    column.rewards[rollout.index] = reward
                    column.num_in += 1

    def fill(self, reward: Reward) -> None:
        """Gives this verdict to every rollout that has none."""
        for column in self.columns:
            for rollout in self.members():
                if column.rewards[rollout.index] is None:
                    column.rewards[rollout.index] = reward

    def land(self, column: VerdictColumn, rollouts: Sequence[Rollout], rewards: Sequence[Reward]) -> bool:
        """Stores verdicts of a column; returns whether that completes the column."""
        for rollout, reward in zip(rollouts, rewards, strict=True):
            column.rewards[rollout.index] = reward
        column.num_in += len(rewards)
        return self.is_whole and column.num_in == self.num_expected

    def column_rewards(self, column: VerdictColumn) -> tuple[Reward, ...]:
        return tuple(reward for reward in column.rewards if reward is not None)

    def replace(self, column: VerdictColumn, rewards: Sequence[Reward]) -> None:
        for rollout, reward in zip(self.members(), rewards, strict=True):
            column.rewards[rollout.index] = reward

    def log_rows(self, number: int) -> list[tuple[str, str | None, str | None, float, str]]:
        """Returns the arguments of a reward's `log` for each rollout: time, query, result, latency, group."""
        return [
            (
                datetime.fromtimestamp(self.note(rollout).landed_unix_s).isoformat(),
                reward.query,
                reward.explanation if reward.value is not None else reward.error,
                reward.latency_s,
                self.group_id,
            )
            for rollout, reward in self._judged(number)
        ]

    def logged_verdicts(self, number: int) -> list[dict[str, object]]:
        """Returns the argument of a reward's `log_verdicts`: for each rollout what is known of its verdict."""
        return [
            {
                "at_unix_s": self.note(rollout).landed_unix_s,
                "group_id": self.group_id,
                "index": rollout.index,
                "step": self.step,
                "query": reward.query,
                "score": reward.value,
                "explanation": reward.explanation,
                "error": reward.error,
                "latency_s": reward.latency_s,
                "extras": dict(reward.extras),
            }
            for rollout, reward in self._judged(number)
        ]

    def _judged(self, number: int) -> Iterator[tuple[Rollout, Reward]]:
        return zip(self.members(), self.column_rewards(self.columns[number]), strict=True)

    def verdict_on(self, index: int, components: Sequence[Component]) -> Reward | None:
        """Returns the verdict on one rollout once every column has one; post-processing may still change it."""
        rewards = [column.rewards[index] for column in self.columns]
        known = [reward for reward in rewards if reward is not None]
        if len(known) < len(rewards):
            return None
        return known[0] if len(components) == 1 and components[0].weight == 1.0 else combine(components, known)

    def scored(self, components: Sequence[Component]) -> ScoredGroup:
        """Returns the finished group, with its rewards combined over the columns."""
        if len(components) == 1 and components[0].weight == 1.0:
            rewards = self.column_rewards(self.columns[0])
        else:
            columns = [self.column_rewards(column) for column in self.columns]
            rewards = tuple(combine(components, row) for row in zip(*columns, strict=True))
        return ScoredGroup(
            group_id=self.group_id, step=self.step, group_size=self.size, rollouts=self.members(), rewards=rewards
        )


def combine(components: Sequence[Component], rewards: Sequence[Reward]) -> Reward:
    """Returns the weighted sum; if one component failed, the sum is failed, not smaller."""
    values: dict[str, float | None] = {}
    extras: dict[str, object] = {}
    total, failed = 0.0, None
    for component, reward in zip(components, rewards, strict=True):
        values[component.name] = reward.value
        values.update(_prefixed(component.name, reward.components))
        extras.update(_prefixed(component.name, reward.extras))
        if reward.value is None:
            failed = failed or (component, reward)
        else:
            total += component.weight * reward.value
    kind: FailureKind | None = None
    error = None
    if failed is not None:
        kind, error = failed[1].kind, f"component {failed[0].name!r} failed: {failed[1].error}"
    elif not math.isfinite(total):
        kind, error = "unparsable", f"the weighted sum of {values} is not a finite number"
    return Reward(
        value=None if error else total,
        kind=kind,
        error=error,
        imputed=any(reward.imputed for reward in rewards),
        components=values,
        extras=extras,
        query=_joined(components, [reward.query for reward in rewards]),
        explanation=_joined(components, [reward.explanation for reward in rewards]),
        attempts=sum(reward.attempts for reward in rewards),
        latency_s=max(reward.latency_s for reward in rewards),
        cost_usd=sum(reward.cost_usd for reward in rewards),
        tokens=sum(reward.tokens for reward in rewards),
        cached=all(reward.cached for reward in rewards),
    )


def _prefixed(name: str, values: Mapping[str, T]) -> dict[str, T]:
    return {f"{name}/{key}": value for key, value in values.items()}


def _joined(components: Sequence[Component], texts: Sequence[str | None]) -> str | None:
    named = [(component.name, text) for component, text in zip(components, texts, strict=True) if text]
    if len(named) == 1:
        return named[0][1]
    return "\n".join(f"{name}: {text}" for name, text in named) or None
