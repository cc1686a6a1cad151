"""The agent's side of a shared agent: who asked for which verdicts, and who still has to be told.

Always true: a rollout that two clients of a run ask about is judged once, and both are told; a verdict stays here until
its client has said that it has it; what a client asked for is cancelled when the last one that wants it is gone. A
client that does not come back within its lease is gone. A group that is judged as a whole and never becomes whole is
given up in bounded time. Whoever keeps a run's record is told of every call that is made for the run.

This module knows no Ray: everything happens on the loop of the agent, and messages may come twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rewardflow.errors import AgentHalted, BudgetExhausted, InvalidInput, RewardflowError
from rewardflow.events import Event, EventSink
from rewardflow.reward.agent import RewardAgent
from rewardflow.reward.keys import asks_the_same
from rewardflow.reward.outlet import Outlet
from rewardflow.shared_agent.lacking import GroupKey, LackingGroups
from rewardflow.shared_agent.messages import (
    Cancel,
    CancelStarted,
    ClientSeen,
    Delivery,
    Halt,
    HostStatistics,
    Op,
    Packed,
    Score,
    Seal,
    Submit,
    Want,
    Welcome,
    pack_event,
    pack_reward,
    unpack_rollout,
)
from rewardflow.shared_agent.outbox import Outbox
from rewardflow.shared_agent.settled import Settled
from rewardflow.types import FailureKind, Reward, Rollout

LEASE_S = 15.0
POLL_S = 5.0

_Key = tuple[str, int, str, int]  # run, step, group, index


@dataclass(slots=True, eq=False)
class _Client:
    """One process of a run. `serials` are those that it was not told of, or has not confirmed; others are settled."""

    id: str
    run: str
    share: float
    records: bool = False  # whether it keeps the record of the run
    serials: dict[int, _Key | None] = field(default_factory=dict)
    settled: Settled = field(default_factory=Settled)
    outlets: dict[int, Outlet] = field(default_factory=dict)
    outbox: Outbox = field(default_factory=Outbox)
    num_polls: int = 0
    is_told_of_halt: bool = False
    waiter: asyncio.Future[None] | None = None
    lease: asyncio.TimerHandle | None = None


@dataclass(slots=True, eq=False)
class _Sample:
    """A rollout that is being judged, and the serial numbers under which it is wanted."""

    rollout: Rollout
    wanted_by: list[tuple[_Client, int]]


@dataclass(frozen=True, slots=True)
class _Ear:
    """The sink of a run's calls: for each of its clients that keep a record."""

    outboxes: Sequence[Outbox]

    def emit(self, event: Event) -> None:
        news = pack_event(event)
        for outbox in self.outboxes:
            outbox.put_news(news)


class Host:
    """Serves clients with one open agent, for as long as that is open."""

    def __init__(
        self, agent: RewardAgent, *, incarnation: str, lease_s: float = LEASE_S, poll_s: float = POLL_S
    ) -> None:
        self._agent = agent
        self._incarnation = incarnation
        self._lease_s = lease_s
        self._poll_s = poll_s
        self._loop = asyncio.get_running_loop()
        self._opened_s = self._loop.time()
        self._clients: dict[str, _Client] = {}
        self._samples: dict[_Key, _Sample] = {}
        self._ears: dict[str, _Ear] = {}  # by run, where somebody keeps its record
        self._num_lost: Counter[str] = Counter()  # clients of a run that went without a word
        self._lacking = LackingGroups(self._loop, agent.incomplete_after_s, self._give_up)
        self.halt: Halt | None = None
        agent.listen(self)
        self._hears_of_halt = agent.outlet(self, run="")  # the others come and go

    # -- clients -----------------------------------------------------------------------------------------------------

    def hello(self, client_id: str, run: str, share: float, records: bool = False) -> Welcome:
        """Let a client in, or in again: what it was sent and has not confirmed comes again."""
        client = self._clients.get(client_id)
        if client is None:
            self._check_share(run, share)
            client = self._clients[client_id] = _Client(client_id, run, share, records)
            self._note_who_records(run)
        client.outbox.take_back()
        self._renew(client)
        return Welcome(
            incarnation=self._incarnation,
            name=self._agent.name,
            needs_groups=self._agent.needs_groups,
            may_change_verdicts=self._agent.may_change_verdicts,
            incomplete_after_s=self._agent.incomplete_after_s,
            settings=self._agent.shown_settings(),
        )

    def _check_share(self, run: str, share: float) -> None:
        if not run or not isinstance(run, str):
            raise InvalidInput(f"run must be a name, got {run!r}")
        if not 0 < share < float("inf"):
            raise InvalidInput(f"share must be a positive number, got {share!r}")
        for other in self._clients.values():
            if other.run == run and other.share != share:
                raise InvalidInput(f"all clients of run {run!r} must have one share, got {other.share:g} and {share:g}")

    def bye(self, client_id: str, confirmed: int) -> Delivery | None:
        """Forget a client, and stop what only it wanted; the last that it may want to write down."""
        client = self._forget(client_id)
        if client is None:
            return None
        client.outbox.confirm(confirmed)
        return client.outbox.hand_over(halt=None, sent_s=self._loop.time())

    def _forget(self, client_id: str) -> _Client | None:
        client = self._clients.pop(client_id, None)
        if client is None:
            return None
        if client.lease is not None:
            client.lease.cancel()
        _wake(client)
        self._note_who_records(client.run)
        self._unwant(client, list(client.serials))
        for outlet in client.outlets.values():
            self._seal(outlet)
        if not any(other.run == client.run for other in self._clients.values()):
            self._agent.assembly.cancel_run(client.run)  # groups that never became whole
            del self._num_lost[client.run]
        return client

    def dismiss(self) -> None:
        """Tell nobody anything more: what becomes of calls that are cut short by closing is no verdict on anything."""
        for client in self._clients.values():
            if client.lease is not None:
                client.lease.cancel()
            _wake(client)
        self._clients.clear()
        self._samples.clear()
        self._ears.clear()
        self._lacking.close()

    def _renew(self, client: _Client) -> None:
        if client.lease is not None:
            client.lease.cancel()
        client.lease = self._loop.call_later(self._lease_s, self._lose, client)

    def _lose(self, client: _Client) -> None:
        self._num_lost[client.run] += 1
        self._forget(client.id)

    # -- what clients send -------------------------------------------------------------------------------------------

    def post(self, client_id: str, ops: Sequence[Op]) -> bool:
        """Do what the client asks; False if it must say hello first."""
        client = self._clients.get(client_id)
        if client is None:
            return False
        if client.waiter is None:
            self._renew(client)
        for op in ops:
            self._do(client, op)
        return True

    def _do(self, client: _Client, op: Op) -> None:
        match op:
            case Submit():
                if fresh := self._take_in(client, op.rollouts):
                    self._begin(self._outlet(client, op), fresh)
                    self._look_for_lacking(client.run, fresh)
            case Score():
                if fresh := self._take_in(client, op.rollouts):
                    lone = self._agent.outlet(self, run=client.run, share=client.share)
                    self._begin(lone, fresh)
                    self._seal(lone)
                    self._look_for_lacking(client.run, fresh)
            case Seal() if op.ticket in client.outlets:
                self._seal(client.outlets.pop(op.ticket))
            case Cancel():
                self._settle(client, op.serials)
            case Want():
                self._unwant(client, [one for one in client.serials.keys() - op.serials if one <= op.last])
                client.settled.add_all_but(op.serials, last=op.last)
            case CancelStarted() if op.ticket in client.outlets and self.halt is None:
                client.outlets[op.ticket].cancel_started()

    def _take_in(self, client: _Client, rollouts: Sequence[tuple[int, Packed]]) -> list[Rollout]:
        """Note who wants what; those that nobody has asked for yet are to be judged."""
        fresh: list[Rollout] = []
        for serial, packed in rollouts:
            if serial in client.serials or serial in client.settled:
                continue
            try:
                rollout = unpack_rollout(packed)
            except InvalidInput as error:
                self._tell(client, serial, Reward(kind="user_error", error=str(error)))
                continue
            key = (client.run, rollout.step, rollout.group_id, rollout.index)
            sample = self._samples.get(key)
            if sample is None:
                client.serials[serial] = key
                self._samples[key] = _Sample(rollout, [(client, serial)])
                fresh.append(rollout)
            elif asks_the_same(sample.rollout, rollout):
                client.serials[serial] = key
                sample.wanted_by.append((client, serial))
            else:
                self._tell(client, serial, _collision(rollout, client.run))
        return fresh

    def _outlet(self, client: _Client, op: Submit) -> Outlet:
        outlet = client.outlets.get(op.ticket)
        if outlet is None:
            outlet = client.outlets[op.ticket] = self._agent.outlet(
                self, run=client.run, share=client.share, due_step=op.due_step, source=op.source
            )
        return outlet

    def _begin(self, outlet: Outlet, rollouts: list[Rollout]) -> None:
        """All at once; if one does not fit its group, one by one, so that only that one is refused."""
        try:
            self._agent.submit(rollouts, ticket=outlet)
        except InvalidInput as error:
            if len(rollouts) > 1:
                for rollout in rollouts:
                    self._begin(outlet, [rollout])
            else:
                self._refuse(outlet.run, rollouts[0], error)
        except AgentHalted:
            is_budget = self.halt is not None and self.halt.error == BudgetExhausted.__name__
            kind: FailureKind = "budget" if is_budget else "outage"
            for rollout in rollouts:
                self.verdict(outlet.run, rollout, Reward(kind=kind, error="the shared agent has stopped sending"))

    def _look_for_lacking(self, run: str, fresh: Sequence[Rollout]) -> None:
        """Of groups that are judged as a whole, those that wait for more; others are told sample by sample."""
        if not self._agent.needs_groups:
            return
        for step, group_id in {(rollout.step, rollout.group_id) for rollout in fresh}:
            if self._agent.assembly.missing_in(run, step, group_id):
                self._lacking.came((run, step, group_id))
            else:
                self._lacking.forget((run, step, group_id))

    def _give_up(self, key: GroupKey) -> None:
        run, step, group_id = key
        missing = self._agent.assembly.missing_in(run, step, group_id)
        if not missing or self.halt is not None:
            return
        lost = self._num_lost[run]
        gone = f"; {lost} of the run's processes went without a word" if lost else ""
        self._agent.assembly.give_up(
            *key,
            f"group {group_id!r} of step {step} is judged as a whole and lacks index {', '.join(map(str, missing))}: "
            f"nothing came for incomplete_after_s={self._agent.incomplete_after_s:g}{gone}",
        )

    def _refuse(self, run: str, rollout: Rollout, error: RewardflowError) -> None:
        """Of a group that is still open the verdict may be there: whoever asked for it before may have died."""
        known = self._agent.assembly.verdict_on(run, rollout)
        self.verdict(run, rollout, known or Reward(kind="user_error", error=str(error)))

    def _settle(self, client: _Client, serials: Sequence[int]) -> None:
        """The client waits for none of these, and a message that asks for one of them comes too late."""
        self._unwant(client, serials)
        client.settled.add(serials)

    def _unwant(self, client: _Client, serials: Iterable[int]) -> None:
        """Stop what nobody wants any longer; a group goes as a whole, when none of it is wanted."""
        groups: dict[tuple[str, int, str], None] = {}
        for serial in serials:
            key = client.serials.pop(serial, None)
            sample = None if key is None else self._samples.get(key)
            if key is None or sample is None:
                continue
            sample.wanted_by = [one for one in sample.wanted_by if one != (client, serial)]
            if not sample.wanted_by:
                groups[key[:3]] = None
        if groups:
            self._agent.assembly.cancel_unwanted(groups, self._is_wanted)

    def _is_wanted(self, run: str, rollout: Rollout) -> bool:
        sample = self._samples.get((run, rollout.step, rollout.group_id, rollout.index))
        return sample is not None and bool(sample.wanted_by)

    def _seal(self, outlet: Outlet) -> None:
        if self._agent.is_open:
            outlet.seal()

    # -- what clients are sent ---------------------------------------------------------------------------------------

    def verdict(self, run: str, rollout: Rollout, reward: Reward, waited_s: float = 0.0) -> None:
        """From the agent: the final word on a rollout. Later words on it are not heard."""
        sample = self._samples.pop((run, rollout.step, rollout.group_id, rollout.index), None)
        if sample is None or not sample.wanted_by:
            return
        packed = pack_reward(reward)
        for client, serial in sample.wanted_by:
            self._tell_packed(client, serial, packed, waited_s)

    def sink_of(self, run: str) -> EventSink | None:
        """From the agent: who wants to hear of calls for the run."""
        return self._ears.get(run)

    def emit(self, event: Event) -> None:
        """From the agent: something changed in an account, which concerns all runs."""
        for ear in self._ears.values():
            ear.emit(event)

    def _note_who_records(self, run: str) -> None:
        outboxes = [client.outbox for client in self._clients.values() if client.run == run and client.records]
        if outboxes:
            self._ears[run] = _Ear(outboxes)
        else:
            self._ears.pop(run, None)

    def halted(self, error: AgentHalted) -> None:
        if self.halt is None:
            self.halt = Halt(type(error).__name__, str(error))
            for client in self._clients.values():
                _wake(client)

    def _tell(self, client: _Client, serial: int, reward: Reward) -> None:
        self._tell_packed(client, serial, pack_reward(reward))

    def _tell_packed(self, client: _Client, serial: int, packed: Packed, waited_s: float = 0.0) -> None:
        client.serials[serial] = None
        client.outbox.put((serial, packed, waited_s))
        _wake(client)

    async def take(self, client_id: str, confirmed: int) -> Delivery | None:
        """Verdicts that the client does not have, once there are any; nothing after a while, to see that it lives.

        `confirmed` is the number of the last delivery that it has. None: it must say hello first.
        """
        client = self._clients.get(client_id)
        if client is None:
            return None
        self._settle(client, client.outbox.confirm(confirmed))
        client.num_polls += 1
        poll = client.num_polls
        _wake(client)  # one poll a client: one of the two has lost its reader
        if client.lease is not None:
            client.lease.cancel()
        try:
            if not self._has_news(client):
                await self._wait_for_news(client)
        finally:
            is_known = self._clients.get(client_id) is client
            if is_known and client.num_polls == poll:
                self._renew(client)
        if not is_known:
            return None
        if client.num_polls != poll:  # whatever the later one was given, this reader has not got it
            return Delivery(confirmed, [], sent_s=self._loop.time())
        client.is_told_of_halt = self.halt is not None
        return client.outbox.hand_over(halt=self.halt, sent_s=self._loop.time())

    def _has_news(self, client: _Client) -> bool:
        return client.outbox.has_verdicts or (self.halt is not None and not client.is_told_of_halt)

    async def _wait_for_news(self, client: _Client) -> None:
        waiter = client.waiter = self._loop.create_future()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._poll_s):
                await waiter
        if client.waiter is waiter:
            client.waiter = None

    # -- being seen --------------------------------------------------------------------------------------------------

    def statistics(self) -> HostStatistics:
        clients = (
            ClientSeen(
                client=client.id,
                run=client.run,
                share=client.share,
                out=sum(key is not None for key in client.serials.values()),
                untaken=client.outbox.num_verdicts,
            )
            for client in self._clients.values()
        )
        return HostStatistics(
            agent=self._agent.statistics(),
            clients=tuple(clients),
            incarnation=self._incarnation,
            up_s=self._loop.time() - self._opened_s,
            halt=self.halt,
        )


def _wake(client: _Client) -> None:
    if client.waiter is not None and not client.waiter.done():
        client.waiter.set_result(None)
    client.waiter = None


def _collision(rollout: Rollout, run: str) -> Reward:
    return Reward(
        kind="user_error",
        error=f"a run may ask about one rollout at a place at a time, got another one at index {rollout.index} of "
        f"group {rollout.group_id!r}, step {rollout.step}, run {run!r}",
    )
