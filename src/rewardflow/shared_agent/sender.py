"""What a client sends: rollouts, and what it says about them, a message's worth at a time.

Always true: what is put in one turn of the loop goes in one message, if there is room. Rollouts need no order among
themselves, so several messages of them are on their way at once; everything else waits for what went before, and lets
nothing pass. What is given up before it left is not sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence

from rewardflow.reward.ticket import Ticket
from rewardflow.shared_agent.connection import Connection
from rewardflow.shared_agent.messages import Op, Packed, ScoreRequest, Submit, pack_rollout
from rewardflow.shared_agent.waiting_rollouts import NO_TICKET, Question, Unanswered

_ROLLOUTS_A_MESSAGE = 1024  # so that packing them holds the loop for milliseconds, and both sides work at once
_MESSAGES_OUT = 8  # on a busy machine a message takes long, however small it is


class Sender:
    """Its messages are tasks of the client's group, which `run` starts and `stop` ends."""

    def __init__(
        self, connection: Connection, unanswered: Unanswered, tasks: asyncio.TaskGroup, *, sends_tokens: bool
    ) -> None:
        self._connection = connection
        self._unanswered = unanswered
        self._tasks = tasks
        self._sends_tokens = sends_tokens
        self._waiting: deque[Op | Question] = deque()
        self._has_waiting = asyncio.Event()
        self._messages_out: set[asyncio.Task[None]] = set()
        self._message_arrived = asyncio.Event()

    def put(self, items: Iterable[Op | Question]) -> None:
        self._waiting.extend(items)
        self._has_waiting.set()

    def start_over(self, items: Iterable[Op | Question]) -> None:
        """These instead of all that waits."""
        self._waiting.clear()
        self.put(items)

    async def run(self) -> None:
        while True:
            await self._has_waiting.wait()
            await self._connection.wait_until_up()
            ops = self._next_rollouts() or self._next_others()
            if not ops:
                self._has_waiting.clear()
                continue
            is_free = all(isinstance(op, Submit | ScoreRequest) for op in ops)
            await self._wait_for_messages_out(fewer_than=_MESSAGES_OUT if is_free else 1)
            message = self._tasks.create_task(self._connection.post(ops, era=self._connection.num_reconnects))
            self._messages_out.add(message)
            message.add_done_callback(self._arrived)
            if not is_free:
                await self._wait_for_messages_out(fewer_than=1)

    def stop(self) -> None:
        for message in tuple(self._messages_out):
            message.cancel()

    async def _wait_for_messages_out(self, *, fewer_than: int) -> None:
        while len(self._messages_out) >= fewer_than:
            self._message_arrived.clear()
            await self._message_arrived.wait()

    def _arrived(self, message: asyncio.Task[None]) -> None:
        self._messages_out.discard(message)
        self._message_arrived.set()

    def _next_rollouts(self) -> Sequence[Op]:
        """The rollouts in front, up to a message's worth, by ticket."""
        by_ticket: dict[int, list[tuple[int, Packed]]] = {}
        tickets: dict[int, Ticket] = {}
        room = _ROLLOUTS_A_MESSAGE
        while room and self._waiting and isinstance(question := self._waiting[0], Question):
            self._waiting.popleft()
            if self._unanswered.has_use(question):
                packed = pack_rollout(question.rollout, with_tokens=self._sends_tokens)
                by_ticket.setdefault(question.ticket, []).append((question.serial, packed))
                if question.group is not None:
                    tickets[question.ticket] = question.group.ticket
                room -= 1
        lone = by_ticket.pop(NO_TICKET, None)
        submits: list[Op] = [
            Submit(number, rollouts, tickets[number].due_step, tickets[number].source)
            for number, rollouts in by_ticket.items()
        ]
        return submits if lone is None else [*submits, ScoreRequest(lone)]

    def _next_others(self) -> Sequence[Op]:
        """All that stands before the next rollout, and must keep its place."""
        others: list[Op] = []
        while self._waiting and not isinstance(op := self._waiting[0], Question):
            others.append(op)
            self._waiting.popleft()
        return others
