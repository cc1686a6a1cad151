"""A ticket that passes each final verdict to a receiver and keeps nothing, for agents that serve other processes.

Always true: the receiver gets a verdict on every rollout at least once, and the first one is final. A verdict that
cannot depend on the rest of its group is passed on at once, so a group that never becomes whole delays no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from rewardflow.errors import AgentHalted
from rewardflow.observe.events import REWARD_SOURCE, EventSink
from rewardflow.reward.ticket import Ticket, TicketOwner
from rewardflow.types import Reward, Rollout, ScoredGroup

if TYPE_CHECKING:
    from rewardflow.reward.component import Component
    from rewardflow.reward.groups.pending_group import PendingGroup


class VerdictReceiver(Protocol):
    """Gets the verdicts of a forwarding ticket. No method may raise."""

    def verdict(self, run: str, rollout: Rollout, reward: Reward, waited_s: float = 0.0) -> None:
        """Takes a verdict. `waited_s` says how long its call waited to start; 0 if no sink listens to the run."""

    def sink_of(self, run: str) -> EventSink | None:
        """Returns the sink for the run's calls, if any; it may be a different one at any time."""

    def halted(self, error: AgentHalted) -> None:
        """Says that the agent has stopped; called after `verdict` got the failed verdicts that this causes."""


class ForwardingTicket(Ticket):
    """Made by `agent.open_forwarding_ticket(...)`; open until it is sealed."""

    def __init__(
        self,
        agent: TicketOwner,
        loop: asyncio.AbstractEventLoop,
        receiver: VerdictReceiver,
        components: Sequence[Component],
        *,
        run: str,
        share: float,
        due_step: int | None = None,
        source: str = REWARD_SOURCE,
    ) -> None:
        super().__init__(agent, loop, is_sealed=False, run=run, share=share, due_step=due_step, source=source)
        self._receiver = receiver
        self._components = components
        self._needs_groups = any(
            one.scorer.loaded.unit == "group" or one.scorer.loaded.post_process is not None for one in components
        )

    @property
    def sink(self) -> EventSink | None:
        return self._receiver.sink_of(self.run)

    def _add_group(self, group: PendingGroup) -> None:
        self._pending[group] = None  # nothing waits on this ticket, so missing rollouts need no check

    def _on_verdicts(self, group: PendingGroup, rollouts: Sequence[Rollout], rewards: Sequence[Reward]) -> None:
        if self._needs_groups:
            return
        for rollout in rollouts:
            reward = group.verdict_on(rollout.index, self._components)
            if reward is not None:
                self._receiver.verdict(self.run, rollout, reward, group.note(rollout).waited_s)

    def _deliver(self, pending: PendingGroup, group: ScoredGroup, *, is_stranded: bool) -> None:
        del self._pending[pending]
        for rollout, reward in zip(group.rollouts, group.rewards, strict=True):
            self._receiver.verdict(self.run, rollout, reward, pending.note(rollout).waited_s)

    def _stop(self, halted: AgentHalted | None) -> None:
        self._is_closed = True
        if halted is not None:
            self._receiver.halted(halted)
