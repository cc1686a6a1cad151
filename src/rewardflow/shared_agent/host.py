"""The agent's side of a shared agent: does what clients ask, and tells them what became of it.

Always true: a rollout that two clients of a run ask about is judged once, and both are told; a verdict stays here until
its client has said that it has it; what a client asked for is cancelled when the last one that wants it is gone. A
client that does not come back within its lease is gone. A group that is judged as a whole and never becomes whole is
given up in bounded time. Whoever keeps a run's record is told of every call that is made for the run.

This module knows no Ray: everything happens on the loop of the agent, and messages may come twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from rewardflow.errors import AgentHalted, BudgetExhausted, InvalidInput, RewardflowError
from rewardflow.observe.events import Event, EventSink
from rewardflow.reward.agent import RewardAgent
from rewardflow.reward.forwarding_ticket import Outlet
from rewardflow.shared_agent.host_clients import LEASE_S, POLL_S, Guest, Guests
from rewardflow.shared_agent.incomplete_groups import GroupKey, LackingGroups
from rewardflow.shared_agent.listeners import Listeners
from rewardflow.shared_agent.messages import (
    Cancel,
    CancelStarted,
    Delivery,
    Halt,
    HostStatistics,
    Op,
    ScoreRequest,
    Seal,
    Submit,
    Want,
    Welcome,
)
from rewardflow.shared_agent.samples import Samples
from rewardflow.types import FailureKind, Reward, Rollout


class Host:
    """Serves clients with one open agent, for as long as that is open."""

    def __init__(
        self, agent: RewardAgent, *, incarnation: str, lease_s: float = LEASE_S, poll_s: float = POLL_S
    ) -> None:
        self._agent = agent
        self._incarnation = incarnation
        self._loop = asyncio.get_running_loop()
        self._opened_s = self._loop.time()
        self._guests = Guests(self._loop, self._forget, lease_s=lease_s, poll_s=poll_s)
        self._samples = Samples()
        self._listeners = Listeners()
        self._lacking = LackingGroups(self._loop, agent.incomplete_after_s, self._give_up)
        self.halt: Halt | None = None
        agent.listen(self)
        self._hears_of_halt = agent.outlet(self, run="")  # the others come and go

    # -- clients -----------------------------------------------------------------------------------------------------

    def hello(self, client_id: str, run: str, share: float, records: bool = False) -> Welcome:
        """Let a client in, or in again: what it was sent and has not confirmed comes again."""
        guest = self._guests.get(client_id)
        if guest is None:
            guest = self._guests.let_in(client_id, run, share, records)
            self._note_who_records(run)
        guest.outbox.take_back()
        self._guests.renew(guest)
        return Welcome(
            incarnation=self._incarnation,
            name=self._agent.name,
            needs_groups=self._agent.needs_groups,
            may_change_verdicts=self._agent.may_change_verdicts,
            incomplete_after_s=self._agent.incomplete_after_s,
            settings=self._agent.shown_settings(),
        )

    def bye(self, client_id: str, confirmed: int) -> Delivery | None:
        """Forget a client, and stop what only it wanted; the last that it may want to write down."""
        guest = self._forget(client_id)
        if guest is None:
            return None
        guest.outbox.confirm(confirmed)
        return guest.outbox.hand_over(halt=None, sent_s=self._loop.time())

    def _forget(self, client_id: str) -> Guest | None:
        guest = self._guests.forget(client_id)
        if guest is None:
            return None
        self._note_who_records(guest.run)
        self._unwant(guest, list(guest.serials))
        for outlet in guest.outlets.values():
            self._seal(outlet)
        if not self._guests.of_run(guest.run):
            self._agent.assembly.cancel_run(guest.run)  # groups that never became whole
            del self._guests.num_lost[guest.run]
        return guest

    def dismiss(self) -> None:
        """Tell nobody anything more: what becomes of calls that are cut short by closing is no verdict on anything."""
        self._guests.clear()
        self._samples.clear()
        self._listeners.clear()
        self._lacking.close()

    # -- what clients send -------------------------------------------------------------------------------------------

    def post(self, client_id: str, ops: Sequence[Op]) -> bool:
        """Do what the client asks; False if it must say hello first."""
        guest = self._guests.get(client_id)
        if guest is None:
            return False
        if guest.waiter is None:
            self._guests.renew(guest)
        for op in ops:
            self._do(guest, op)
        return True

    def _do(self, guest: Guest, op: Op) -> None:
        match op:
            case Submit():
                if fresh := self._samples.take_in(guest, op.rollouts):
                    self._begin(self._outlet(guest, op), fresh)
                    self._look_for_lacking(guest.run, fresh)
            case ScoreRequest():
                if fresh := self._samples.take_in(guest, op.rollouts):
                    lone = self._agent.outlet(self, run=guest.run, share=guest.share)
                    self._begin(lone, fresh)
                    self._seal(lone)
                    self._look_for_lacking(guest.run, fresh)
            case Seal() if op.ticket in guest.outlets:
                self._seal(guest.outlets.pop(op.ticket))
            case Cancel():
                self._settle(guest, op.serials)
            case Want():
                self._unwant(guest, [one for one in guest.serials.keys() - op.serials if one <= op.last])
                guest.settled.add_all_but(op.serials, last=op.last)
            case CancelStarted() if op.ticket in guest.outlets and self.halt is None:
                guest.outlets[op.ticket].cancel_started()

    def _outlet(self, guest: Guest, op: Submit) -> Outlet:
        outlet = guest.outlets.get(op.ticket)
        if outlet is None:
            outlet = guest.outlets[op.ticket] = self._agent.outlet(
                self, run=guest.run, share=guest.share, due_step=op.due_step, source=op.source
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
        lost = self._guests.num_lost[run]
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

    def _settle(self, guest: Guest, serials: Sequence[int]) -> None:
        """The client waits for none of these, and a message that asks for one of them comes too late."""
        self._unwant(guest, serials)
        guest.settled.add(serials)

    def _unwant(self, guest: Guest, serials: Iterable[int]) -> None:
        """Stop what nobody wants any longer; a group goes as a whole, when none of it is wanted."""
        groups = self._samples.unwant(guest, serials)
        if groups:
            self._agent.assembly.cancel_unwanted(groups, self._samples.is_wanted)

    def _seal(self, outlet: Outlet) -> None:
        if self._agent.is_open:
            outlet.seal()

    # -- what clients are sent ---------------------------------------------------------------------------------------

    def verdict(self, run: str, rollout: Rollout, reward: Reward, waited_s: float = 0.0) -> None:
        """From the agent: the final word on a rollout. Later words on it are not heard."""
        self._samples.tell(run, rollout, reward, waited_s)

    def sink_of(self, run: str) -> EventSink | None:
        """From the agent: who wants to hear of calls for the run."""
        return self._listeners.of(run)

    def emit(self, event: Event) -> None:
        """From the agent: something changed in an account, which concerns all runs."""
        self._listeners.emit(event)

    def _note_who_records(self, run: str) -> None:
        self._listeners.note(run, [guest.outbox for guest in self._guests.of_run(run) if guest.records])

    def halted(self, error: AgentHalted) -> None:
        if self.halt is None:
            self.halt = Halt(type(error).__name__, str(error))
            for guest in self._guests:
                guest.wake()

    async def take(self, client_id: str, confirmed: int) -> Delivery | None:
        """Verdicts that the client does not have, once there are any; nothing after a while, to see that it lives.

        `confirmed` is the number of the last delivery that it has. None: it must say hello first.
        """
        guest = self._guests.get(client_id)
        if guest is None:
            return None
        self._settle(guest, guest.outbox.confirm(confirmed))
        is_latest = await self._guests.poll(guest, has_news=self._has_news(guest))
        if self._guests.get(client_id) is not guest:
            return None
        if not is_latest:  # whatever the later poll was given, this reader has not got it
            return Delivery(confirmed, [], sent_s=self._loop.time())
        guest.is_told_of_halt = self.halt is not None
        return guest.outbox.hand_over(halt=self.halt, sent_s=self._loop.time())

    def _has_news(self, guest: Guest) -> bool:
        return guest.outbox.has_verdicts or (self.halt is not None and not guest.is_told_of_halt)

    # -- being seen --------------------------------------------------------------------------------------------------

    def statistics(self) -> HostStatistics:
        return HostStatistics(
            agent=self._agent.statistics(),
            clients=tuple(guest.seen() for guest in self._guests),
            incarnation=self._incarnation,
            up_s=self._loop.time() - self._opened_s,
            halt=self.halt,
        )
