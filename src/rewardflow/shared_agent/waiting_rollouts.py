"""Holds the rollouts that a client waits for, by serial number, so that it can send them again.

Always true: a serial number names one request for ever, and later requests have higher numbers. A rollout stays here
until `take_out` removes it, once. Where verdicts depend on groups, some rollouts with a verdict are kept too, up to a
limit: the process that holds the rest of the group may have to submit it again, and the group must then be whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from rewardflow.observe.events import REWARD_SOURCE
from rewardflow.reward.groups.pending_group import PendingGroup
from rewardflow.shared_agent.messages import StillWanted
from rewardflow.shared_agent.record import RunRecord
from rewardflow.types import Reward, Rollout

NO_TICKET = 0
_MAX_KEPT = 8192


@dataclass(frozen=True, slots=True, eq=False)
class WaitingRollout:
    """A rollout without a verdict, and the group or the caller of `score` that waits for it."""

    serial: int
    rollout: Rollout
    ticket: int
    group: PendingGroup | None = None
    caller: asyncio.Future[Reward] | None = None

    @property
    def source(self) -> str:
        return REWARD_SOURCE if self.group is None else self.group.ticket.source


class WaitingRollouts:
    """Waiting rollouts in the order of submission. Tells the run's record when a rollout is added and removed."""

    def __init__(self, record: RunRecord | None) -> None:
        self._record = record
        self._by_serial: dict[int, WaitingRollout] = {}
        self._kept_for_groups: dict[int, WaitingRollout] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._by_serial)

    def add(
        self,
        rollout: Rollout,
        ticket: int,
        *,
        group: PendingGroup | None = None,
        caller: asyncio.Future[Reward] | None = None,
    ) -> WaitingRollout:
        self._last += 1
        waiting = self._by_serial[self._last] = WaitingRollout(self._last, rollout, ticket, group, caller)
        if self._record is not None:
            self._record.sent(rollout, waiting.source)
        return waiting

    def take_out(self, serial: int) -> WaitingRollout | None:
        """Removes a rollout that has its verdict or was cancelled; None if it was removed before."""
        waiting = self._by_serial.pop(serial, None)
        if waiting is not None and self._record is not None:
            self._record.ended(waiting.rollout, waiting.source)
        return waiting

    def all(self) -> list[WaitingRollout]:
        return list(self._by_serial.values())

    def of(self, groups: Collection[PendingGroup]) -> list[WaitingRollout]:
        return [waiting for waiting in self._by_serial.values() if waiting.group in groups]

    def has_use(self, serial: int) -> bool:
        """Whether this rollout must still be sent, because it was not cancelled before."""
        return serial in self._by_serial or serial in self._kept_for_groups

    def keep_for_group(self, answered: WaitingRollout) -> None:
        self._kept_for_groups[answered.serial] = answered
        if len(self._kept_for_groups) > _MAX_KEPT:
            del self._kept_for_groups[next(iter(self._kept_for_groups))]

    def to_send_again(self) -> tuple[StillWanted, list[WaitingRollout]]:
        """Returns what a restarted host must be sent: the list of wanted serial numbers, then all those rollouts."""
        want = StillWanted(list(self._by_serial), self._last)
        return want, [*self._by_serial.values(), *self._renumbered()]

    def _renumbered(self) -> Iterable[WaitingRollout]:
        """Gives kept rollouts new serial numbers: a host that did not restart would ignore the settled old ones."""
        first = self._last + 1
        self._last += len(self._kept_for_groups)
        kept = [replace(waiting, serial=first + i) for i, waiting in enumerate(self._kept_for_groups.values())]
        self._kept_for_groups = {waiting.serial: waiting for waiting in kept}
        return kept
