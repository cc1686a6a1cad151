"""Holds a client's tickets and open groups.

Always true: a group is delivered once, to the ticket that first named it, and holds the same rollout objects that were
submitted. The rollouts of one batch all join their groups, or none does. A ticket keeps the number by which the host
knows it until it is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from rewardflow.errors import AgentHalted
from rewardflow.reward.groups.pending_group import PendingGroup
from rewardflow.reward.ticket import Ticket
from rewardflow.shared_agent.record import RunRecord
from rewardflow.types import UNDECIDED_KINDS, Reward, Rollout, ScoredGroup

_ONE_COLUMN = (False,)  # the host combines several rewards and judges whole groups


class ClientTickets:
    """All tickets and groups of one client. `halted` is set once the host has stopped for good."""

    def __init__(self, loop: asyncio.AbstractEventLoop, record: RunRecord | None) -> None:
        self.halted: AgentHalted | None = None
        self.numbers: dict[Ticket, int] = {}
        self._loop = loop
        self._record = record
        self._groups: dict[tuple[int, str], PendingGroup] = {}
        self._num_tickets = self._num_groups = 0

    def add(self, ticket: Ticket) -> None:
        self._num_tickets += 1
        self.numbers[ticket] = self._num_tickets

    def sealed_numbers(self) -> list[int]:
        return sorted(number for ticket, number in self.numbers.items() if ticket.is_sealed)

    def join(self, batch: Sequence[Rollout], ticket: Ticket) -> list[PendingGroup]:
        """Adds each rollout to its group and returns the groups; if one does not fit, adds none."""
        groups: list[PendingGroup] = []
        try:
            for rollout in batch:
                group = self._group_of(rollout, ticket)
                group.put(rollout)
                groups.append(group)
                group.ticket._wake()
        except BaseException:
            for rollout, group in zip(batch, groups, strict=False):
                group.take_out(rollout)
                if group.num_in == 0:
                    self._groups.pop((group.step, group.group_id), None)
                    group.ticket._drop_group(group)
            raise
        return groups

    def _group_of(self, rollout: Rollout, ticket: Ticket) -> PendingGroup:
        key = (rollout.step, rollout.group_id)
        group = self._groups.get(key)
        if group is None:
            self._num_groups += 1
            group = PendingGroup(rollout, self._num_groups, ticket, _ONE_COLUMN, self._loop.time())
            self._groups[key] = group
            ticket._add_group(group)
        return group

    def deliver(self, group: PendingGroup) -> None:
        if group.is_delivered:  # a watcher cancelled it when its last verdict came
            return
        group.is_delivered = True
        self._groups.pop((group.step, group.group_id), None)
        rewards = group.column_rewards(group.columns[0])
        scored = ScoredGroup(
            group_id=group.group_id, step=group.step, group_size=group.size, rollouts=group.members(), rewards=rewards
        )
        if self._record is not None:
            self._record.delivered(group, scored)
        is_stranded = self.halted is not None and any(reward.kind in UNDECIDED_KINDS for reward in rewards)
        group.ticket._deliver(group, scored, is_stranded=is_stranded)
        self.forget_if_over(group.ticket)

    def cut_short(self, groups: Iterable[PendingGroup], reward: Reward) -> None:
        """Delivers the groups as they are; rollouts without a verdict get this one."""
        for group in groups:
            group.cut_short(reward)
            self.deliver(group)

    def cut_all_short(self, reward: Reward) -> None:
        self.cut_short(list(self._groups.values()), reward)

    def forget_if_over(self, ticket: Ticket) -> None:
        if ticket.is_over and self.halted is None:  # after a halt, stop_tickets must still reach it
            self.numbers.pop(ticket, None)

    def stop_tickets(self, halted: AgentHalted | None) -> None:
        """Ends every wait for groups that will not come; `halted` is the reason that waiters get."""
        for ticket in list(self.numbers):
            ticket._stop(halted)
        self.numbers.clear()
