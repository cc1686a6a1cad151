"""The clients that a host knows: their leases, polls, requests and outboxes.

Always true: a client is lost when its lease ends without a message from it; an open poll keeps the lease. Only a
client's latest poll gets verdicts. All clients of a run have the same share, within bounds, so that no run starves. A
delivery stays in the client's outbox until the client has confirmed it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from rewardflow.errors import InvalidInput
from rewardflow.reward.forwarding_ticket import ForwardingTicket
from rewardflow.reward.settings import MAX_SHARE, MIN_SHARE
from rewardflow.shared_agent.deliveries import Outbox
from rewardflow.shared_agent.messages import ClientStatus, pack_reward
from rewardflow.types import Reward

LEASE_S = 15.0
POLL_S = 5.0

SampleKey = tuple[str, int, str, int]  # run, step, group, index


class SettledSerials:
    """Serial numbers of a client that are done, so that a message that comes late has no second effect.

    Always true: an added number stays in it for ever; time and memory grow with how many numbers a message names and
    are settled out of order, not with how large they are. It holds every number up to `_upto` that is not in `_open`,
    and some above it.
    """

    __slots__ = ("_above", "_open", "_upto")

    def __init__(self) -> None:
        self._upto = 0
        self._open: set[int] = set()
        self._above: set[int] = set()

    def __contains__(self, number: int) -> bool:
        return number not in self._open if number <= self._upto else number in self._above

    def add(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if number > self._upto:
                self._above.add(number)
            else:
                self._open.discard(number)
        while self._upto + 1 in self._above:
            self._upto += 1
            self._above.remove(self._upto)

    def add_all_but(self, numbers: Collection[int], *, last: int) -> None:
        """Adds every number up to `last` except these."""
        still_open = {number for number in numbers if number <= last and number not in self}
        self._open = still_open.union(number for number in self._open if number > last)
        if last > self._upto:
            self._upto = last
            self._above = {number for number in self._above if number > last}
            self.add(())


@dataclass(slots=True, eq=False)
class HostClient:
    """One client, which is one process of a run.

    `serials` holds the requests without a confirmed verdict (None once the verdict is in the outbox); all others are
    in `settled`.
    """

    id: str
    run: str
    share: float
    records: bool = False  # whether it records the run's events
    serials: dict[int, SampleKey | None] = field(default_factory=dict)
    settled: SettledSerials = field(default_factory=SettledSerials)
    sizes: dict[int, int] = field(default_factory=dict)  # bytes of the rollouts in `serials`
    tickets: dict[int, ForwardingTicket] = field(default_factory=dict)
    outbox: Outbox = field(default_factory=Outbox)
    num_polls: int = 0
    is_told_of_halt: bool = False
    waiter: asyncio.Future[None] | None = None
    lease: asyncio.TimerHandle | None = None

    def tell(self, serial: int, reward: Reward, waited_s: float = 0.0) -> None:
        self.serials[serial] = None
        self.outbox.put((serial, pack_reward(reward), waited_s))
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

    def status(self) -> ClientStatus:
        return ClientStatus(
            client=self.id,
            run=self.run,
            share=self.share,
            out=sum(key is not None for key in self.serials.values()),
            untaken=self.outbox.num_verdicts,
            num_bytes=sum(self.sizes.values()),
        )


Settled = Callable[[Reward], None]


@dataclass(slots=True, eq=False)
class LocalClient(HostClient):
    """Asks for callers in the host's own process, which wait for a callback instead of a delivery. It has no lease.

    `waiting` holds the callback of each request; `done` is called with the serial number of each that has its verdict.
    """

    waiting: dict[int, Settled] = field(default_factory=dict)
    done: Callable[[LocalClient, int], None] = lambda client, serial: None
    last_serial: int = 0

    def tell(self, serial: int, reward: Reward, waited_s: float = 0.0) -> None:
        settled = self.waiting.pop(serial, None)
        self.done(self, serial)
        if settled is not None:
            settled(reward)

    def tell_all(self, reward: Reward) -> None:
        """Ends every wait with this verdict."""
        for serial in tuple(self.waiting):
            self.tell(serial, reward)


class HostClients:
    """Clients by id. Calls `lose` with the id of each client whose lease ran out; `lose` must call `forget`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, lose: Callable[[str], object], *, lease_s: float, poll_s: float
    ) -> None:
        self.num_lost: Counter[str] = Counter()  # clients whose lease ran out, by run
        self._loop = loop
        self._lose = lose
        self._lease_s = lease_s
        self._poll_s = poll_s
        self._by_id: dict[str, HostClient] = {}
        self._local: dict[str, LocalClient] = {}  # by run

    def __iter__(self) -> Iterator[HostClient]:
        return iter(self._by_id.values())

    def get(self, client_id: str) -> HostClient | None:
        return self._by_id.get(client_id)

    def of_run(self, run: str) -> list[HostClient]:
        return [client for client in self if client.run == run]

    def let_in(self, client_id: str, run: str, share: float, records: bool) -> HostClient:
        self._check(run, share)
        client = self._by_id[client_id] = HostClient(client_id, run, share, records)
        if run in self._local:
            self._local[run].share = share
        return client

    def local(self, run: str, share: float, done: Callable[[LocalClient, int], None]) -> LocalClient:
        """Returns the run's client in this process; it stays until `clear`."""
        known = self._local.get(run)
        if known is None:
            self._check(run, share)
            known = self._local[run] = LocalClient(f"local:{run}", run, share, done=done)
            self._by_id[known.id] = known
        return known

    def _check(self, run: str, share: float) -> None:
        if not run or not isinstance(run, str):
            raise InvalidInput(f"run must be a name, got {run!r}")
        if not MIN_SHARE <= share <= MAX_SHARE:
            raise InvalidInput(f"share must be from {MIN_SHARE:g} to {MAX_SHARE:g}, got {share!r}")
        for other in self.of_run(run):
            if other.share != share and not isinstance(other, LocalClient):  # which takes the share of the others
                raise InvalidInput(f"all clients of run {run!r} must have one share, got {other.share:g} and {share:g}")

    def forget(self, client_id: str) -> HostClient | None:
        client = self._by_id.pop(client_id, None)
        if client is not None:
            client.end_lease()
            client.wake()
        return client

    def clear(self) -> None:
        for client_id in list(self._by_id):
            self.forget(client_id)
        closed = Reward(kind="cancelled", error="the agent was closed before this verdict was final")
        for client in self._local.values():
            client.tell_all(closed)
        self._local.clear()

    def renew(self, client: HostClient) -> None:
        client.end_lease()
        client.lease = self._loop.call_later(self._lease_s, self._lapse, client)

    def _lapse(self, client: HostClient) -> None:
        self.num_lost[client.run] += 1
        self._lose(client.id)

    async def poll(self, client: HostClient, *, has_news: bool) -> bool:
        """Waits until something is to be delivered or the poll times out; whether this is still the latest poll."""
        client.num_polls += 1
        poll = client.num_polls
        client.wake()  # ends an earlier poll: one client reads one poll at a time
        client.end_lease()
        try:
            if not has_news:
                await client.wait_until_woken(self._poll_s)
        finally:
            is_latest = self.get(client.id) is client and client.num_polls == poll
            if is_latest:
                self.renew(client)
        return is_latest
