"""Takes rollouts and gives tickets, from any thread: what an agent does wherever its calls are made.

Always true: rollouts become groups in one place, the `Assembly`, whether the calls are made in this process
(`RewardAgent`) or at a host that several processes share (`SharedAgent`). Everything runs on the loop that the agent
was entered on; other threads wait until their short action has run there.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, TypeVar

from rewardflow.errors import AgentClosed
from rewardflow.observe.events import REWARD_SOURCE
from rewardflow.reward.event_loop import AgentLoop
from rewardflow.reward.groups.assembly import Assembly
from rewardflow.reward.recorder import StepRecorder
from rewardflow.reward.ticket import Ticket
from rewardflow.types import Rollout

T = TypeVar("T")


class TicketAgent(abc.ABC):
    """The tickets of an agent. A subclass opens `_assembly` on its loop, and sets `_is_open`."""

    _NOT_OPEN: ClassVar[str] = "the agent is not open: use `async with RewardAgent(...) as agent`"

    def __init__(self, *, run: str, share: float = 1.0) -> None:
        self._run = run
        self._share = share
        self._recorder: StepRecorder | None = None
        self._assembly: Assembly | None = None
        self._tasks = asyncio.TaskGroup()
        self._resources = contextlib.AsyncExitStack()
        self._agent_loop: AgentLoop | None = None
        self._is_open = False

    # -- submitting --------------------------------------------------------------------------------------------------

    def submit(self, rollouts: Rollout | Iterable[Rollout], *, ticket: Ticket | None = None) -> Ticket:
        """Starts scoring and returns at once.

        A group belongs to the ticket that first named it; later rollouts of the group, from any `submit`, complete it
        there. The ticket ends when all of its groups were taken.
        """
        batch = [rollouts] if isinstance(rollouts, Rollout) else list(rollouts)
        context = contextvars.copy_context()
        return self.on_loop(lambda: self._submit(batch, ticket, context))

    def open(self, *, due_step: int | None = None, source: str = REWARD_SOURCE) -> Ticket:
        """Returns a ticket to submit to during generation: `with agent.open() as ticket: ticket.submit(rollout)`.

        When slots are scarce, its calls queue with those of `due_step` instead of the rollouts' own step; `source`
        names the totals in which they count.
        """
        return self.on_loop(lambda: self._new_ticket(is_sealed=False, due_step=due_step, source=source))

    def _submit(self, batch: Sequence[Rollout], ticket: Ticket | None, context: contextvars.Context) -> Ticket:
        if not self._is_open:
            raise AgentClosed("the agent was closed")
        if ticket is None:
            ticket = self._new_ticket(is_sealed=True)
        else:
            ticket._check_takes_more()
        self.assembly.accept(batch, ticket, context)
        return ticket

    def _new_ticket(self, *, is_sealed: bool, due_step: int | None = None, source: str = REWARD_SOURCE) -> Ticket:
        assert self._agent_loop is not None
        ticket = Ticket(
            self,
            self._agent_loop.loop,
            is_sealed=is_sealed,
            run=self._run,
            share=self._share,
            due_step=due_step,
            source=source,
            sink=self._recorder,
        )
        self.assembly.register(ticket)
        return ticket

    # -- for tickets -------------------------------------------------------------------------------------------------

    def on_loop(self, action: Callable[[], T]) -> T:
        """Runs a short action on the agent's loop; may be called from any thread."""
        if not self._is_open or self._agent_loop is None:
            raise AgentClosed(self._NOT_OPEN)
        return self._agent_loop.run(action)

    def cancel(self, ticket: Ticket, group_ids: set[str] | None) -> None:
        self.assembly.cancel(ticket._groups(group_ids), "cancelled", "cancelled by the caller")

    def cancel_started(self, ticket: Ticket) -> None:
        self.cancel(ticket, set(ticket.started))

    def sealed(self, ticket: Ticket) -> None:
        self.assembly.call_log_if_over(ticket)

    # -- state -------------------------------------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def incomplete_after_s(self) -> float | None:
        """How long a ticket waits for the rest of a group."""

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def assembly(self) -> Assembly:
        if self._assembly is None:
            raise AgentClosed(self._NOT_OPEN)
        return self._assembly
