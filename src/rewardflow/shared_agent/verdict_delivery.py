"""Verdicts as they reach a client: each to whoever waits for it, a group or the caller of `score`.

Always true: every question gets one verdict, once: one that comes a second time finds nobody waiting. When the host has
halted or the client ends, everything that is out gets a failed verdict that says so, and nobody waits any longer.
"""

from __future__ import annotations

from rewardflow import errors
from rewardflow.errors import AgentHalted, BudgetExhausted
from rewardflow.reward.groups.pending_group import Note, PendingGroup
from rewardflow.shared_agent.claims import Claims
from rewardflow.shared_agent.client_counts import ClientCounts
from rewardflow.shared_agent.messages import Delivery, unpack_reward
from rewardflow.shared_agent.record import RunRecord
from rewardflow.shared_agent.waiting_rollouts import Question, Unanswered
from rewardflow.types import UNDECIDED_KINDS, FailureKind, Reward


class Verdicts:
    def __init__(self, unanswered: Unanswered, claims: Claims, counts: ClientCounts, record: RunRecord | None) -> None:
        self._unanswered = unanswered
        self._claims = claims
        self._counts = counts
        self._record = record

    # -- from the host -----------------------------------------------------------------------------------------------

    def land(self, delivery: Delivery, *, needs_groups: bool) -> None:
        claims = self._claims
        if delivery.halt is not None:
            kind = getattr(errors, delivery.halt.error, AgentHalted)
            claims.halted = kind(delivery.halt.message)
        if self._record is not None:
            self._record.heard(delivery)
        for serial, packed, waited_s in delivery.verdicts:
            question = self._unanswered.take_out(serial)
            if question is not None:
                if needs_groups and (question.group is None or not question.group.is_whole):
                    self._unanswered.keep_as_witness(question)
                self._answer(question, unpack_reward(packed), waited_s)
        if claims.halted is not None:
            self.halt(claims.halted)

    def _answer(self, question: Question, reward: Reward, waited_s: float) -> None:
        self._counts.ended(reward)
        if question.group is None:
            self._answer_caller(question, reward, waited_s)
        else:
            self._answer_group(question, question.group, reward, waited_s)

    def _answer_caller(self, question: Question, reward: Reward, waited_s: float) -> None:
        if self._record is not None:
            self._record.judged(question.rollout, reward, waited_s=waited_s, source=question.source)
        is_undecided = reward.kind in UNDECIDED_KINDS
        _tell_caller(question, reward, self._claims.halted if is_undecided else None)

    def _answer_group(self, question: Question, group: PendingGroup, reward: Reward, waited_s: float) -> None:
        if self._record is not None:
            group.notes[question.rollout.index] = Note(waited_s, 0.0)
        is_complete = group.land(group.columns[0], (question.rollout,), (reward,))
        group.ticket._landed(group, (question.rollout,), (reward,))
        if is_complete:
            self._claims.deliver(group)

    # -- from here ---------------------------------------------------------------------------------------------------

    def cancel(self, groups: set[PendingGroup]) -> list[int]:
        """Give the groups up; the numbers of the questions whose answers nobody wants any longer."""
        reward = Reward(kind="cancelled", error="cancelled by the caller")
        questions = self._unanswered.of(groups)
        for question in questions:
            if self._unanswered.take_out(question.serial) is None:
                continue  # a watcher that was told of an earlier one has given it up
            assert question.group is not None
            self._counts.ended(reward)
            question.group.ticket._landed(question.group, [question.rollout], [reward])
        self._claims.cut_short(groups, reward)
        return [question.serial for question in questions]

    def halt(self, halted: AgentHalted) -> None:
        self._end(halted, "budget" if isinstance(halted, BudgetExhausted) else "outage", str(halted))

    def close(self) -> None:
        self._end(None, "cancelled", "the client of the shared agent was closed")

    def _end(self, halted: AgentHalted | None, kind: FailureKind, message: str) -> None:
        """Nothing more will come: give everything that is out a failed verdict of this kind, and let nobody wait."""
        reward = Reward(kind=kind, error=message)
        self._claims.halted = self._claims.halted or halted
        self._claims.cut_all_short(reward)
        questions = self._unanswered.all()
        for question in questions:
            self._counts.ended(reward)
            _tell_caller(question, reward, halted)
        for question in questions:
            self._unanswered.take_out(question.serial)
        self._claims.stop_tickets(halted)


def _tell_caller(question: Question, reward: Reward, halted: AgentHalted | None) -> None:
    caller = question.caller
    if caller is None or caller.done():
        return
    if halted is None:
        caller.set_result(reward)
    else:
        caller.set_exception(halted)
