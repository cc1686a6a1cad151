"""A client from its hello to its goodbye: the parts it consists of, and how they begin and end together.

Always true: a session that ends gives up what is out, first here and then at the host, in bounded time; the record of
the run hears of its beginning first and of its end last.
"""

from __future__ import annotations

import asyncio

from rewardflow.reward.event_loop import HomeLoop, end_tasks
from rewardflow.shared_agent.claims import Claims
from rewardflow.shared_agent.client_counts import ClientCounts, ClientStatistics
from rewardflow.shared_agent.connection import Connection
from rewardflow.shared_agent.receiver import Receiver
from rewardflow.shared_agent.record import RunRecord
from rewardflow.shared_agent.sender import Sender
from rewardflow.shared_agent.verdict_delivery import Verdicts
from rewardflow.shared_agent.waiting_rollouts import Unanswered


class Session:
    """Made on the loop that it lives on. Begun once, and ended if it has begun."""

    def __init__(
        self, connection: Connection, counts: ClientCounts, record: RunRecord | None, *, sends_tokens: bool
    ) -> None:
        self.home = HomeLoop()
        self.unanswered = Unanswered(record)
        self.claims = Claims(self.home.loop, record)
        self.verdicts = Verdicts(self.unanswered, self.claims, counts, record)
        self._connection = connection
        self._counts = counts
        self._record = record
        self._tasks = asyncio.TaskGroup()
        self.sender = Sender(connection, self.unanswered, self._tasks, sends_tokens=sends_tokens)
        self._receiver = Receiver(
            connection,
            self.verdicts,
            unanswered=self.unanswered,
            claims=self.claims,
            sender=self.sender,
            record=record,
        )

    async def begin(self) -> None:
        welcome = await self._connection.open()
        if self._record is not None:
            self._record.opened(welcome)
        await self._tasks.__aenter__()
        self._io = (self._tasks.create_task(self.sender.run()), self._tasks.create_task(self._receiver.run()))

    async def end(self, error: BaseException | None) -> None:
        """`error` is what ended the client's block."""
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
                    self._record.heard(last)
                self._record.closed(self.statistics())

    def statistics(self) -> ClientStatistics:
        return self._counts.statistics(out=len(self.unanswered), reconnects=self._connection.num_reconnects)
