"""An open client: its parts, the task that reads deliveries, and how all of it begins and ends.

Always true: a session asks for the next delivery only after it has handled the last one. After a reconnect it first
tells the host which verdicts it still wants, then sends those rollouts again and seals sealed tickets again. A session
that ends cancels its open rollouts in bounded time, first here, then at the host. The run's record begins with the
session's opening event and ends with its closing event.
"""

from __future__ import annotations

import asyncio
import logging

from rewardflow.errors import AgentHalted
from rewardflow.reward.event_loop import AgentLoop, end_tasks
from rewardflow.shared_agent.client_counts import ClientCounts, ClientStatistics
from rewardflow.shared_agent.client_tickets import ClientTickets
from rewardflow.shared_agent.connection import Connection
from rewardflow.shared_agent.messages import Seal
from rewardflow.shared_agent.record import RunRecord
from rewardflow.shared_agent.sender import Sender
from rewardflow.shared_agent.verdict_delivery import VerdictDelivery
from rewardflow.shared_agent.waiting_rollouts import WaitingRollouts

logger = logging.getLogger(__name__)


class Session:
    """One client's session, created on the loop that runs it. Call `begin` once, and `end` if `begin` succeeded."""

    def __init__(
        self, connection: Connection, counts: ClientCounts, record: RunRecord | None, *, sends_tokens: bool
    ) -> None:
        self.agent_loop = AgentLoop()
        self.waiting_rollouts = WaitingRollouts(record)
        self.client_tickets = ClientTickets(self.agent_loop.loop, record)
        self.verdicts = VerdictDelivery(self.waiting_rollouts, self.client_tickets, counts, record)
        self._connection = connection
        self._counts = counts
        self._record = record
        self._tasks = asyncio.TaskGroup()
        self.sender = Sender(connection, self.waiting_rollouts, self._tasks, sends_tokens=sends_tokens)

    async def begin(self) -> None:
        welcome = await self._connection.open()
        if self._record is not None:
            self._record.opened(welcome)
        await self._tasks.__aenter__()
        self._io = (self._tasks.create_task(self.sender.run()), self._tasks.create_task(self._read_deliveries()))

    async def end(self, error: BaseException | None) -> None:
        """Ends all tasks and leaves the host; `error` is the exception that ended the client's block, if any."""
        for task in self._io:
            task.cancel()
        self.sender.stop()
        try:
            await end_tasks(self._tasks, error)
        finally:
            self.verdicts.close()
            last = await self._connection.bye()
            if self._record is not None:
                if last is not None:
                    self._record.received(last)
                self._record.closed(self.statistics())

    async def _read_deliveries(self) -> None:
        """Hands deliveries on until the host has halted or is gone for good."""
        while True:
            try:
                delivery = await self._connection.take()
                if delivery is None:
                    await self._reconnect()
                    continue
            except AgentHalted as gone:
                self.verdicts.halt(gone)
                return
            self.verdicts.land(delivery, needs_groups=self._connection.welcome.needs_groups)
            if delivery.halt is not None:
                return

    async def _reconnect(self) -> None:
        """Says hello until a host answers, then sends every rollout without a verdict again."""
        async with self._connection.renewed():
            if self._record is not None:
                self._record.reconnected()
            still_wanted, rollouts = self.waiting_rollouts.to_send_again()
            seals = [Seal(number) for number in self.client_tickets.sealed_numbers()]
            self.sender.start_over([still_wanted, *rollouts, *seals])
        logger.warning(
            "connected to the shared agent again; sent %d rollouts without a verdict again", len(self.waiting_rollouts)
        )

    def statistics(self) -> ClientStatistics:
        return self._counts.statistics(out=len(self.waiting_rollouts), reconnects=self._connection.num_reconnects)
