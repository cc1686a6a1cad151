"""A host's guests, which are the clients that it knows: who is there, and for how long without a word.

Always true: a client that is not heard of for its lease is lost, and one that has a poll open here is heard of; of a
client's polls only the latest gets anything. All clients of a run have one share. What a client was told stays in its
outbox until it has said that it has it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rewardflow.errors import InvalidInput
from rewardflow.reward.forwarding_ticket import Outlet
from rewardflow.shared_agent.messages import ClientSeen, Packed
from rewardflow.shared_agent.outbox import Outbox
from rewardflow.shared_agent.settled import Settled

LEASE_S = 15.0
POLL_S = 5.0

SampleKey = tuple[str, int, str, int]  # run, step, group, index


@dataclass(slots=True, eq=False)
class Guest:
    """A client, which is one process of a run.

    `serials` are those that it was not told of, or has not confirmed; others are settled.
    """

    id: str
    run: str
    share: float
    records: bool = False  # whether it keeps the record of the run
    serials: dict[int, SampleKey | None] = field(default_factory=dict)
    settled: Settled = field(default_factory=Settled)
    outlets: dict[int, Outlet] = field(default_factory=dict)
    outbox: Outbox = field(default_factory=Outbox)
    num_polls: int = 0
    is_told_of_halt: bool = False
    waiter: asyncio.Future[None] | None = None
    lease: asyncio.TimerHandle | None = None

    def tell(self, serial: int, reward: Packed, waited_s: float = 0.0) -> None:
        self.serials[serial] = None
        self.outbox.put((serial, reward, waited_s))
        self.wake()

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)
        self.waiter = None

    async def wait_until_woken(self, timeout_s: float) -> None:
        waiter = self.waiter = asyncio.get_running_loop().create_future()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await waiter
        if self.waiter is waiter:
            self.waiter = None

    def end_lease(self) -> None:
        if self.lease is not None:
            self.lease.cancel()

    def seen(self) -> ClientSeen:
        return ClientSeen(
            client=self.id,
            run=self.run,
            share=self.share,
            out=sum(key is not None for key in self.serials.values()),
            untaken=self.outbox.num_verdicts,
        )


class Guests:
    """`lose` is called with the id of each client whose lease ran out, and is to `forget` it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, lose: Callable[[str], object], *, lease_s: float, poll_s: float
    ) -> None:
        self.num_lost: Counter[str] = Counter()  # clients of a run that went without a word
        self._loop = loop
        self._lose = lose
        self._lease_s = lease_s
        self._poll_s = poll_s
        self._by_id: dict[str, Guest] = {}

    def __iter__(self) -> Iterator[Guest]:
        return iter(self._by_id.values())

    def get(self, client_id: str) -> Guest | None:
        return self._by_id.get(client_id)

    def of_run(self, run: str) -> list[Guest]:
        return [guest for guest in self if guest.run == run]

    def let_in(self, client_id: str, run: str, share: float, records: bool) -> Guest:
        if not run or not isinstance(run, str):
            raise InvalidInput(f"run must be a name, got {run!r}")
        if not 0 < share < float("inf"):
            raise InvalidInput(f"share must be a positive number, got {share!r}")
        for other in self.of_run(run):
            if other.share != share:
                raise InvalidInput(f"all clients of run {run!r} must have one share, got {other.share:g} and {share:g}")
        guest = self._by_id[client_id] = Guest(client_id, run, share, records)
        return guest

    def forget(self, client_id: str) -> Guest | None:
        guest = self._by_id.pop(client_id, None)
        if guest is not None:
            guest.end_lease()
            guest.wake()
        return guest

    def clear(self) -> None:
        for client_id in list(self._by_id):
            self.forget(client_id)

    def renew(self, guest: Guest) -> None:
        guest.end_lease()
        guest.lease = self._loop.call_later(self._lease_s, self._lapse, guest)

    def _lapse(self, guest: Guest) -> None:
        self.num_lost[guest.run] += 1
        self._lose(guest.id)

    async def poll(self, guest: Guest, *, has_news: bool) -> bool:
        """Wait for news, or for a while; whether this is still the client's latest poll, and so gets what there is."""
        guest.num_polls += 1
        poll = guest.num_polls
        guest.wake()  # one poll a client: one of the two has lost its reader
        guest.end_lease()
        try:
            if not has_news:
                await guest.wait_until_woken(self._poll_s)
        finally:
            is_latest = self.get(guest.id) is guest and guest.num_polls == poll
            if is_latest:
                self.renew(guest)
        return is_latest
