"""Gives each verdict to its group, or to the caller of `score`.

Always true: every rollout gets one verdict, once; a verdict that comes a second time is ignored. When the host has
halted or the client ends, every rollout without a verdict gets a failed one that says so, and every wait ends.
"""

from __future__ import annotations

from rewardflow import errors
from rewardflow.errors import AgentHalted, BudgetExhausted
from rewardflow.reward.groups.pending_group import Note, PendingGroup
from rewardflow.shared_agent.client_counts import ClientCounts
from rewardflow.shared_agent.client_tickets import ClientTickets
from rewardflow.shared_agent.messages import Delivery, unpack_reward
from rewardflow.shared_agent.record import RunRecord
from rewardflow.shared_agent.waiting_rollouts import WaitingRollout, WaitingRollouts
from rewardflow.types import UNDECIDED_KINDS, FailureKind, Reward


class VerdictDelivery:
    def __init__(
        self,
        waiting_rollouts: WaitingRollouts,
        client_tickets: ClientTickets,
        counts: ClientCounts,
        record: RunRecord | None,
    ) -> None:
        self._waiting_rollouts = waiting_rollouts
        self._client_tickets = client_tickets
        self._counts = counts
        self._record = record

    # -- from the host -----------------------------------------------------------------------------------------------

    def land(self, delivery: Delivery, *, needs_groups: bool) -> None:
        client_tickets = self._client_tickets
        if delivery.halt is not None:
            kind = getattr(errors, delivery.halt.error, AgentHalted)
            client_tickets.halted = kind(delivery.halt.message)
        if self._record is not None:
            self._record.received(delivery)
        for serial, packed, waited_s in delivery.verdicts:
            waiting = self._waiting_rollouts.take_out(serial)
            if waiting is not None:
                if needs_groups and (waiting.group is None or not waiting.group.is_whole):
                    self._waiting_rollouts.keep_for_group(waiting)
                self._answer(waiting, unpack_reward(packed), waited_s)
        if client_tickets.halted is not None:
            self.halt(client_tickets.halted)

    def _answer(self, waiting: WaitingRollout, reward: Reward, waited_s: float) -> None:
        self._counts.ended(reward)
        if waiting.group is None:
            self._answer_caller(waiting, reward, waited_s)
        else:
            self._answer_group(waiting, waiting.group, reward, waited_s)

    def _answer_caller(self, waiting: WaitingRollout, reward: Reward, waited_s: float) -> None:
        if self._record is not None:
            self._record.judged(waiting.rollout, reward, waited_s=waited_s, source=waiting.source)
        is_undecided = reward.kind in UNDECIDED_KINDS
        _tell_caller(waiting, reward, self._client_tickets.halted if is_undecided else None)

    def _answer_group(self, waiting: WaitingRollout, group: PendingGroup, reward: Reward, waited_s: float) -> None:
        if self._record is not None:
            group.notes[waiting.rollout.index] = Note(waited_s, 0.0)
        is_complete = group.land(group.columns[0], (waiting.rollout,), (reward,))
        group.ticket._on_verdicts(group, (waiting.rollout,), (reward,))
        if is_complete:
            self._client_tickets.deliver(group)

    # -- from here ---------------------------------------------------------------------------------------------------

    def cancel(self, groups: set[PendingGroup]) -> list[int]:
        """Cancels the groups; returns the serial numbers of their rollouts that had no verdict."""
        reward = Reward(kind="cancelled", error="cancelled by the caller")
        all_waiting = self._waiting_rollouts.of(groups)
        for waiting in all_waiting:
            if self._waiting_rollouts.take_out(waiting.serial) is None:
                continue  # a watcher cancelled it when it was called with an earlier verdict
            assert waiting.group is not None
            self._counts.ended(reward)
            waiting.group.ticket._on_verdicts(waiting.group, [waiting.rollout], [reward])
        self._client_tickets.cut_short(groups, reward)
        return [waiting.serial for waiting in all_waiting]

    def halt(self, halted: AgentHalted) -> None:
        self._end(halted, "budget" if isinstance(halted, BudgetExhausted) else "outage", str(halted))

    def close(self) -> None:
        self._end(None, "cancelled", "the client of the shared agent was closed")

    def _end(self, halted: AgentHalted | None, kind: FailureKind, message: str) -> None:
        """Gives every rollout without a verdict a failed one of this kind, and ends every wait."""
        reward = Reward(kind=kind, error=message)
        self._client_tickets.halted = self._client_tickets.halted or halted
        self._client_tickets.cut_all_short(reward)
        all_waiting = self._waiting_rollouts.all()
        for waiting in all_waiting:
            self._counts.ended(reward)
            _tell_caller(waiting, reward, halted)
        for waiting in all_waiting:
            self._waiting_rollouts.take_out(waiting.serial)
        self._client_tickets.stop_tickets(halted)


def _tell_caller(waiting: WaitingRollout, reward: Reward, halted: AgentHalted | None) -> None:
    caller = waiting.caller
    if caller is None or caller.done():
        return
    if halted is None:
        caller.set_result(reward)
    else:
        caller.set_exception(halted)
