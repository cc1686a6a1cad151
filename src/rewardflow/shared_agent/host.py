"""The host of a shared agent: serves its clients with one `RewardAgent`.

Always true: a rollout that two clients of a run submit is judged once, and both get the verdict. The host keeps a
verdict until its client has confirmed it, and cancels a request once no client wants it. A client that does not come
back within its lease is removed. A group that is judged as a whole and never becomes whole is given up in bounded time.
A client that records its run gets every call that is made for the run. Only the holder of a client's secret can send,
take or leave as that client. A run's rollouts take a bounded number of bytes (`samples.py`).

This module does not import Ray. Everything runs on the agent's loop, and a message may arrive twice.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar, cast

from rewardflow.errors import AgentHalted, BudgetExhausted, InvalidInput, RewardflowError
from rewardflow.observe.events import Event, EventSink
from rewardflow.reward.agent import RewardAgent
from rewardflow.reward.forwarding_ticket import ForwardingTicket
from rewardflow.reward.groups.incomplete_groups import GroupKey, IncompleteGroups
from rewardflow.shared_agent.deliveries import Listeners
from rewardflow.shared_agent.host_clients import LEASE_S, POLL_S, HostClient, HostClients, LocalClient, Settled
from rewardflow.shared_agent.messages import (
    Bye,
    Cancel,
    CancelStarted,
    Delivery,
    Halt,
    Hello,
    HostStatistics,
    Message,
    Op,
    Post,
    ScoreRequest,
    Seal,
    StillWanted,
    Submit,
    Take,
    UnknownClient,
    Welcome,
    client_id_of,
)
from rewardflow.shared_agent.samples import Samples, WaitingRoom
from rewardflow.types import FailureKind, Reward, Rollout

T = TypeVar("T")


class Host:
    """Serves clients for as long as its agent is open."""

    def __init__(
        self,
        agent: RewardAgent,
        *,
        incarnation: str,
        node: str = "",
        lease_s: float = LEASE_S,
        poll_s: float = POLL_S,
        max_waiting_of: Callable[[str], int | None] = lambda run: None,
    ) -> None:
        """`max_waiting_of` tells how many rollouts a run may have waiting; None: any number."""
        self._agent = agent
        self._incarnation = incarnation
        self._node = node
        self._loop = asyncio.get_running_loop()
        self._opened_s = self._loop.time()
        self._clients = HostClients(self._loop, self._forget, lease_s=lease_s, poll_s=poll_s)
        self._samples = Samples()
        self._waiting_room = WaitingRoom(agent.settings.max_waiting_mb * 1e6, max_waiting_of)
        self._listeners = Listeners()
        self._steps: dict[tuple[str, int, bool], ForwardingTicket] = {}  # for single requests, by run and step
        self._incomplete_groups = IncompleteGroups(self._loop, agent.incomplete_after_s, self._give_up)
        self.halt: Halt | None = None
        agent.add_account_sink(self)
        self._halt_ticket = agent.open_forwarding_ticket(self, run="")  # stays open, so that `halted` is always called

    # -- clients -----------------------------------------------------------------------------------------------------

    async def answer(self, message: Message[T]) -> T:
        """Answers a client's message, whichever way it came in."""
        answer: object
        match message:
            case Hello():
                answer = self.hello(message.secret, message.run, message.share, message.records)
            case Post():
                self.post(message.secret, message.ops)
                answer = None
            case Take():
                answer = await self.take(message.secret, message.confirmed)
            case Bye():
                answer = self.bye(message.secret, message.confirmed)
            case _:
                answer = self.statistics()
        return cast("T", answer)

    def hello(self, secret: str, run: str, share: float, records: bool = False) -> Welcome:
        """Registers a client, or registers it again; deliveries that it has not confirmed are sent again."""
        client_id = client_id_of(secret)
        client = self._clients.get(client_id)
        if client is None:
            client = self._clients.let_in(client_id, run, share, records)
            self._update_listeners(run)
        client.outbox.take_back()
        self._clients.renew(client)
        return self.describe()

    def describe(self) -> Welcome:
        """Tells what this agent is."""
        return Welcome(
            incarnation=self._incarnation,
            name=self._agent.name,
            needs_groups=self._agent.needs_groups,
            may_change_verdicts=self._agent.may_change_verdicts,
            incomplete_after_s=self._agent.incomplete_after_s,
            settings=self._agent.shown_settings(),
        )

    def bye(self, secret: str, confirmed: int) -> Delivery:
        """Removes a client and stops the calls that only it wanted; returns the last delivery, for its record."""
        client = self._known(secret)
        self._forget(client.id)
        client.outbox.confirm(confirmed)
        return client.outbox.hand_over(halt=None, sent_s=self._loop.time())

    def _known(self, secret: str) -> HostClient:
        client = self._clients.get(client_id_of(secret))
        if client is None:
            raise UnknownClient("this client must say hello first")
        return client

    def _forget(self, client_id: str) -> None:
        client = self._clients.forget(client_id)
        if client is None:
            return
        self._update_listeners(client.run)
        self._withdraw(client, list(client.serials))
        for ticket in client.tickets.values():
            self._seal(ticket)
        if not self._clients.of_run(client.run):
            self._seal_steps(client.run)
            self._agent.assembly.cancel_run(client.run)  # groups that never became whole
            del self._clients.num_lost[client.run]

    def dismiss(self) -> None:
        """Drops all clients before the agent closes: calls that closing cuts short must not give verdicts."""
        for run in {run for run, _, _ in self._steps}:
            self._seal_steps(run)
        self._samples.clear()  # first: the agent ends all calls at once, and for each client it would look through all
        self._clients.clear()
        self._listeners.clear()
        self._incomplete_groups.close()

    # -- what clients send -------------------------------------------------------------------------------------------

    def post(self, secret: str, ops: Sequence[Op]) -> None:
        """Carries out requests; raises `RunFull`, and does nothing, if the run has too much waiting."""
        client = self._known(secret)
        if client.waiter is None:
            self._clients.renew(client)
        self._waiting_room.add(client, ops)
        for kind, same in itertools.groupby(ops, key=type):
            if kind is Cancel:  # at once: each goes through the whole queue
                self._settle(client, [serial for op in same for serial in cast("Cancel", op).serials])
            else:
                for op in same:
                    self._do(client, op)

    def ask(
        self,
        run: str,
        rollouts: Sequence[tuple[Rollout, Settled]],
        *,
        share: float = 1.0,
        due_step: int | None = None,
        is_batch: bool = False,
    ) -> None:
        """Asks for callers in this process, and calls each rollout's callback with its verdict, once.

        All of the rollouts are judged, also if nobody waits for them any longer. Raises `RunFull` like `post`.
        `is_batch`: they belong to no step, and are a batch of their own for the rewards' `log`.
        """
        client = self._clients.local(run, share, lambda client, serial: self._withdraw(client, (serial,)))
        numbered = [(serial, one, settled) for serial, (one, settled) in enumerate(rollouts, client.last_serial + 1)]
        self._waiting_room.add_local(client, [(serial, one) for serial, one, _ in numbered])
        client.last_serial += len(rollouts)
        client.waiting.update({serial: settled for serial, _, settled in numbered})
        fresh = [one for serial, one, _ in numbered if self._samples.want(client, serial, one)]
        if not is_batch or due_step is not None:
            self._begin_alone(client, fresh, due_step)
        elif fresh:
            ticket = self._agent.open_forwarding_ticket(self, run=run, share=client.share)
            self._begin(ticket, fresh)
            self._seal(ticket)

    def num_waiting(self) -> dict[str, int]:
        """Returns how many rollouts of each run wait for a verdict, or for their client to confirm it."""
        return self._waiting_room.num_rollouts()

    @property
    def needs_groups(self) -> bool:
        """Whether a verdict may depend on the other rollouts of its group."""
        return self._agent.needs_groups

    def share_of(self, run: str) -> float | None:
        """Returns the share of a run that has clients."""
        return next((client.share for client in self._clients.of_run(run)), None)

    def _do(self, client: HostClient, op: Op) -> None:
        match op:
            case Submit():
                if fresh := self._samples.take_in(client, op.rollouts):
                    self._begin(self._ticket_of(client, op), fresh)
                    self._watch_incomplete(client.run, fresh)
            case ScoreRequest():
                self._begin_alone(client, self._samples.take_in(client, op.rollouts), op.due_step)
            case Seal() if op.ticket in client.tickets:
                self._seal(client.tickets.pop(op.ticket))
            case StillWanted():
                self._withdraw(client, [one for one in client.serials.keys() - op.serials if one <= op.last])
                client.settled.add_all_but(op.serials, last=op.last)
            case CancelStarted() if op.ticket in client.tickets and self.halt is None:
                client.tickets[op.ticket].cancel_started()

    def _begin_alone(self, client: HostClient, fresh: list[Rollout], due_step: int | None) -> None:
        """Begins rollouts that belong to no ticket of the client. A message may hold those of several steps."""
        for step, of_step in itertools.groupby(fresh, key=lambda rollout: rollout.step):
            same = list(of_step)
            self._begin(self._ticket_of_step(client, step, due_step), same)
            self._watch_incomplete(client.run, same, always=isinstance(client, LocalClient))

    def _ticket_of(self, client: HostClient, op: Submit) -> ForwardingTicket:
        ticket = client.tickets.get(op.ticket)
        if ticket is None:
            ticket = client.tickets[op.ticket] = self._agent.open_forwarding_ticket(
                self, run=client.run, share=client.share, due_step=op.due_step, source=op.source
            )
        return ticket

    def _ticket_of_step(self, client: HostClient, step: int, due_step: int | None) -> ForwardingTicket:
        """Returns the ticket for the single requests of a run's step, so that `log` gets a whole step as one batch.

        A step is over when the next but one has begun: two may be generated at the same time.
        """
        step = step if due_step is None else due_step
        self._seal_steps(client.run, before=step - 1)
        key = client.run, step, due_step is not None
        ticket = self._steps.get(key)
        if ticket is None:
            ticket = self._steps[key] = self._agent.open_forwarding_ticket(
                self, run=client.run, share=client.share, due_step=due_step
            )
        return ticket

    def _seal_steps(self, run: str, *, before: float = math.inf) -> None:
        for key in [key for key in self._steps if key[0] == run and key[1] < before]:
            self._seal(self._steps.pop(key))

    def _begin(self, ticket: ForwardingTicket, rollouts: list[Rollout]) -> None:
        """Submits all rollouts at once; if one does not fit its group, one by one, so that only that one is refused."""
        try:
            self._agent.submit(rollouts, ticket=ticket)
        except InvalidInput as error:
            if len(rollouts) > 1:
                for rollout in rollouts:
                    self._begin(ticket, [rollout])
            else:
                self._refuse(ticket.run, rollouts[0], error)
        except AgentHalted:
            is_budget = self.halt is not None and self.halt.error == BudgetExhausted.__name__
            kind: FailureKind = "budget" if is_budget else "outage"
            for rollout in rollouts:
                self.verdict(ticket.run, rollout, Reward(kind=kind, error="the shared agent has stopped sending"))

    def _watch_incomplete(self, run: str, fresh: Sequence[Rollout], *, always: bool = False) -> None:
        """Watches groups that lack rollouts, if groups are judged as a whole; other verdicts do not wait for these.

        `always`: also the others, because no lease of a client will end them.
        """
        if not self._agent.needs_groups and not always:
            return
        for step, group_id in {(rollout.step, rollout.group_id) for rollout in fresh}:
            if self._agent.assembly.missing_in(run, step, group_id):
                self._incomplete_groups.rollout_arrived((run, step, group_id))
            else:
                self._incomplete_groups.forget((run, step, group_id))

    def _give_up(self, key: GroupKey) -> None:
        run, step, group_id = key
        missing = self._agent.assembly.missing_in(run, step, group_id)
        if not missing or self.halt is not None:
            return
        if not self._agent.needs_groups and self._agent.assembly.num_outstanding_in(run, step, group_id):
            self._incomplete_groups.rollout_arrived(key)
            return
        lost = self._clients.num_lost[run]
        gone = f"; {lost} of the run's processes stopped answering" if lost else ""
        self._agent.assembly.give_up(
            *key,
            f"group {group_id!r} of step {step} is judged as a whole and lacks index {', '.join(map(str, missing))}: "
            f"nothing came for incomplete_after_s={self._agent.incomplete_after_s:g}{gone}",
        )

    def _refuse(self, run: str, rollout: Rollout, error: RewardflowError) -> None:
        """Returns the verdict that an open group may already hold (its first client may have died), else a failure."""
        known = self._agent.assembly.verdict_on(run, rollout)
        self.verdict(run, rollout, known or Reward(kind="user_error", error=str(error)))

    def _settle(self, client: HostClient, serials: Sequence[int]) -> None:
        """Marks serials that the client no longer waits for; later messages that ask for them are ignored."""
        self._withdraw(client, serials)
        client.settled.add(serials)

    def _withdraw(self, client: HostClient, serials: Iterable[int]) -> None:
        """Cancels calls that no client wants any longer, and whole groups of which no rollout is wanted."""
        serials = tuple(serials)
        groups = self._samples.withdraw(client, serials)
        self._waiting_room.release(client, serials)
        if groups:
            self._agent.assembly.cancel_unwanted(groups, self._samples.is_wanted)

    def _seal(self, ticket: ForwardingTicket) -> None:
        if self._agent.is_open:
            ticket.seal()

    # -- what clients are sent ---------------------------------------------------------------------------------------

    def verdict(self, run: str, rollout: Rollout, reward: Reward, waited_s: float = 0.0) -> None:
        """Called by the agent with the final verdict on a rollout; later verdicts on it are ignored."""
        self._samples.tell(run, rollout, reward, waited_s)

    def sink_of(self, run: str) -> EventSink | None:
        """Called by the agent: returns the sink for the run's calls, if a client records the run."""
        return self._listeners.of(run)

    def emit(self, event: Event) -> None:
        """Called by the agent with a change in an account, which concerns all runs."""
        self._listeners.emit(event)

    def _update_listeners(self, run: str) -> None:
        self._listeners.set_outboxes(run, [client.outbox for client in self._clients.of_run(run) if client.records])

    def halted(self, error: AgentHalted) -> None:
        if self.halt is None:
            self.halt = Halt(type(error).__name__, str(error))
            for client in self._clients:
                client.wake()

    async def take(self, secret: str, confirmed: int) -> Delivery:
        """Waits for verdicts that the client does not have; returns an empty delivery after a while, as a sign of life.

        `confirmed` is the number of the last delivery that it has.
        """
        client = self._known(secret)
        self._settle(client, client.outbox.confirm(confirmed))
        is_latest = await self._clients.poll(client, has_news=self._has_news(client))
        if self._known(secret) is not client:
            raise UnknownClient("this client has said hello again")
        if not is_latest:  # the later poll got the verdicts, this one did not
            return Delivery(confirmed, [], sent_s=self._loop.time())
        client.is_told_of_halt = self.halt is not None
        return client.outbox.hand_over(halt=self.halt, sent_s=self._loop.time())

    def _has_news(self, client: HostClient) -> bool:
        return client.outbox.has_verdicts or (self.halt is not None and not client.is_told_of_halt)

    # -- statistics --------------------------------------------------------------------------------------------------

    def statistics(self) -> HostStatistics:
        return HostStatistics(
            agent=self._agent.statistics(),
            clients=tuple(client.status() for client in self._clients),
            incarnation=self._incarnation,
            up_s=self._loop.time() - self._opened_s,
            halt=self.halt,
            pid=os.getpid(),
            node=self._node,
        )
