"""The rollouts that a client waits for verdicts on, by serial number, and those that stand by them.

Always true: a number names one question for ever, and a later question has a higher one; what was asked stays here
until it is taken out, once, so that all of it can be asked again. Where verdicts depend on groups, answered rollouts
are kept as witnesses, up to a number: whoever holds the rest of the group may have to ask again, and it must then be
whole once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from rewardflow.observe.events import REWARD_SOURCE
from rewardflow.reward.groups.pending_group import PendingGroup
from rewardflow.shared_agent.messages import Want
from rewardflow.shared_agent.record import RunRecord
from rewardflow.types import Reward, Rollout

NO_TICKET = 0
_MAX_WITNESSES = 8192


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A rollout without a verdict, and who waits for it: a group, or the caller of `score`."""

    serial: int
    rollout: Rollout
    ticket: int
    group: PendingGroup | None = None
    caller: asyncio.Future[Reward] | None = None

    @property
    def source(self) -> str:
        return REWARD_SOURCE if self.group is None else self.group.ticket.source


class Unanswered:
    """Questions in the order they were asked. The run's record is told of each when it comes and when it goes."""

    def __init__(self, record: RunRecord | None) -> None:
        self._record = record
        self._questions: dict[int, Question] = {}
        self._witnesses: dict[int, Question] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._questions)

    def ask(
        self,
        rollout: Rollout,
        ticket: int,
        *,
        group: PendingGroup | None = None,
        caller: asyncio.Future[Reward] | None = None,
    ) -> Question:
        self._last += 1
        question = self._questions[self._last] = Question(self._last, rollout, ticket, group, caller)
        if self._record is not None:
            self._record.sent(rollout, question.source)
        return question

    def take_out(self, serial: int) -> Question | None:
        """It has its verdict, or wants none any longer; None if it was taken out before."""
        question = self._questions.pop(serial, None)
        if question is not None and self._record is not None:
            self._record.ended(question.rollout, question.source)
        return question

    def all(self) -> list[Question]:
        return list(self._questions.values())

    def of(self, groups: Collection[PendingGroup]) -> list[Question]:
        return [question for question in self._questions.values() if question.group in groups]

    def has_use(self, question: Question) -> bool:
        """Whether it is still to be sent: it was not given up before it left."""
        return question.serial in self._questions or question.serial in self._witnesses

    def keep_as_witness(self, answered: Question) -> None:
        self._witnesses[answered.serial] = answered
        if len(self._witnesses) > _MAX_WITNESSES:
            del self._witnesses[next(iter(self._witnesses))]

    def asked_again(self) -> tuple[Want, list[Question]]:
        """For a host that may know nothing: what of all that was numbered is still wanted, and then all of it."""
        want = Want(list(self._questions), self._last)
        return want, [*self._questions.values(), *self._renumbered_witnesses()]

    def _renumbered_witnesses(self) -> Iterable[Question]:
        """Their old numbers are settled: at a host that is still there they would count as messages that come late."""
        first = self._last + 1
        self._last += len(self._witnesses)
        witnesses = [replace(question, serial=first + i) for i, question in enumerate(self._witnesses.values())]
        self._witnesses = {question.serial: question for question in witnesses}
        return witnesses
