"""Sends a client's rollouts and requests to the host, in batches.

Always true: all items put in one turn of the loop go in one message, if they fit. Rollouts need no order among
themselves, so several messages of rollouts may be in flight at once; any other request is sent alone, after all earlier
messages and before all later ones. A rollout that is cancelled before it is sent is not sent, also if the host had no
room for it before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rewardflow.reward.ticket import Ticket
from rewardflow.shared_agent.connection import Connection
from rewardflow.shared_agent.messages import Op, Packed, ScoreRequest, Submit, pack_rollout, text_size
from rewardflow.shared_agent.waiting_rollouts import NO_TICKET, WaitingRollout, WaitingRollouts

_ROLLOUTS_A_MESSAGE = 1024  # packing them blocks the loop for milliseconds only, and both sides work at once
_BYTES_A_MESSAGE = 8 << 20  # the host takes a message as a whole or not at all
_MESSAGES_OUT = 8  # on a busy machine even a small message takes long


class Sender:
    """A queue of messages to the host. Each is a task of the client's group; `run` starts them, `stop` ends them."""

    def __init__(
        self, connection: Connection, waiting_rollouts: WaitingRollouts, tasks: asyncio.TaskGroup, *, sends_tokens: bool
    ) -> None:
        self._connection = connection
        self._waiting_rollouts = waiting_rollouts
        self._tasks = tasks
        self._sends_tokens = sends_tokens
        self._waiting: deque[Op | WaitingRollout] = deque()
        self._has_waiting = asyncio.Event()
        self._messages_out: set[asyncio.Task[None]] = set()
        self._message_arrived = asyncio.Event()

    def put(self, items: Iterable[Op | WaitingRollout]) -> None:
        self._waiting.extend(items)
        self._has_waiting.set()

    def start_over(self, items: Iterable[Op | WaitingRollout]) -> None:
        """Replaces all queued items by these."""
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
            epoch = self._connection.num_reconnects
            message = self._tasks.create_task(
                self._connection.post(ops, epoch=epoch, without_cancelled=self._without_cancelled)
            )
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
        """Takes rollouts from the front of the queue, up to one message, grouped by ticket."""
        by_ticket: dict[int, list[tuple[int, Packed]]] = {}
        tickets: dict[int, Ticket] = {}
        room, room_bytes = _ROLLOUTS_A_MESSAGE, _BYTES_A_MESSAGE
        while room and room_bytes > 0 and self._waiting and isinstance(waiting := self._waiting[0], WaitingRollout):
            self._waiting.popleft()
            if self._waiting_rollouts.has_use(waiting.serial):
                packed = pack_rollout(waiting.rollout, with_tokens=self._sends_tokens)
                by_ticket.setdefault(waiting.ticket, []).append((waiting.serial, packed))
                if waiting.group is not None:
                    tickets[waiting.ticket] = waiting.group.ticket
                room -= 1
                room_bytes -= text_size(waiting.rollout)
        lone = by_ticket.pop(NO_TICKET, None)
        submits: list[Op] = [
            Submit(number, rollouts, tickets[number].due_step, tickets[number].source)
            for number, rollouts in by_ticket.items()
        ]
        return submits if lone is None else [*submits, ScoreRequest(lone)]

    def _without_cancelled(self, ops: Sequence[Op]) -> Sequence[Op]:
        kept: list[Op] = []
        for op in ops:
            if isinstance(op, Submit | ScoreRequest):
                wanted = [one for one in op.rollouts if self._waiting_rollouts.has_use(one[0])]
                kept += [replace(op, rollouts=wanted)] if wanted else []
            else:
                kept.append(op)
        return kept

    def _next_others(self) -> Sequence[Op]:
        """Takes all requests in front of the next rollout; they must be sent in order."""
        others: list[Op] = []
        while self._waiting and not isinstance(op := self._waiting[0], WaitingRollout):
            others.append(op)
            self._waiting.popleft()
        return others
