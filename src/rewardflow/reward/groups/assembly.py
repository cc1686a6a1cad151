"""Turns rollouts into jobs, and verdicts into groups.

Always true: every accepted rollout gets exactly one verdict from each reward; a verdict that was paid for is in the
journal before its group is delivered; a group is delivered once, when its last verdict is in. Where the calls of its
jobs are made, here or at a host that several processes share, is the concern of each component's dispatcher.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rewardflow.errors import AgentHalted, BudgetExhausted, InvalidInput, JournalWriteFailed
from rewardflow.reward.code.hooks import Hooks
from rewardflow.reward.code.results import apply_post_process, fail, scores_for_post_process
from rewardflow.reward.groups.dedupe import Deduplicator, free_copy
from rewardflow.reward.groups.job import Job
from rewardflow.reward.groups.pending_group import Note, PendingGroup
from rewardflow.reward.journal.verdict_journal import Journal, JournalEntry
from rewardflow.reward.journal.verdict_keys import has_same_inputs, verdict_keys
from rewardflow.reward.recorder import StepRecorder, record_group, verdict_event
from rewardflow.reward.settings import AgentSettings
from rewardflow.types import UNDECIDED_KINDS, FailureKind, Reward, Rollout

if TYPE_CHECKING:
    from rewardflow.reward.component import Component
    from rewardflow.reward.ticket import Ticket

_NOT_FINAL = "the agent was closed before this verdict was final"
_NOT_WHOLE = "its group was given up before it was whole, so its scores were never post-processed"
_UNWANTED = "no client wants this verdict any longer"


@dataclass(frozen=True, slots=True, kw_only=True)
class AssemblyStatistics:
    submitted: int
    delivered: int
    pending_groups: int
    scored: int
    failed: Mapping[str, int]
    imputed: int
    cached: int


class Assembly:
    """All open groups of one agent, from `accept` until each is delivered to its ticket."""

    def __init__(
        self,
        components: Sequence[Component],
        settings: AgentSettings,
        *,
        journal: Journal | None,
        recorder: StepRecorder | None,
        hooks: Hooks,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._components = components
        self._settings = settings
        self._journal = journal
        self._recorder = recorder
        self._hooks = hooks
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._groups: dict[tuple[str, int, str], PendingGroup] = {}  # by run, step and name
        self._tickets: weakref.WeakSet[Ticket] = weakref.WeakSet()
        self._deduplicator = Deduplicator(remembers=journal is None) if settings.reuse == "content" else None
        self._num_groups = 0
        self._judges_groups = tuple(component.scorer.loaded.unit == "group" for component in components)
        self._open_groups: Counter[tuple[int, str]] = Counter()  # and rollouts alone, by step and source
        self._alone: dict[Job, None] = {}  # an ordered set: jobs of rollouts that other processes' groups hold
        self._logs = any(component.scorer.loaded.logs for component in components)
        self._delivered_for_log: defaultdict[Ticket, list[PendingGroup]] = defaultdict(list)
        self._on_resolved = self._resolved  # bound once, not once for every job
        self._add_job = tuple([(one.decider or one.dispatcher).add for one in components])
        self._halted: AgentHalted | None = None
        self._is_draining = False  # halted, while calls that are out may still end
        self._is_closing = False
        self._submitted = self._delivered = self._scored = self._imputed = self._cached = 0
        self._failed: Counter[str] = Counter()

    # -- in ----------------------------------------------------------------------------------------------------------

    def register(self, ticket: Ticket) -> None:
        self._tickets.add(ticket)

    def accept(self, rollouts: Sequence[Rollout], ticket: Ticket, context: contextvars.Context) -> None:
        """Accepts all of the rollouts or none, and starts their jobs."""
        self._check_not_halted()
        groups = self._put_into_groups(rollouts, ticket, self._loop.time())
        jobs: list[Job] = []
        for rollout, group in zip(rollouts, groups, strict=True):
            for job in self._jobs_for(group, rollout, context):
                group.jobs.append(job)
                jobs.append(job)
        self._submitted += len(rollouts)
        self._begin(jobs)

    def accept_alone(
        self, rollout: Rollout, ticket: Ticket, context: contextvars.Context, settled: Callable[[Reward], None]
    ) -> Job:
        """Starts the job of a rollout whose group other processes may hold; only `settled` gets its verdict, once.

        It is for agents of one reward that post-processes nothing here: the host of a shared agent does that.
        """
        self._check_not_halted()
        group = PendingGroup(rollout, 0, ticket, self._judges_groups, self._loop.time())
        group.put(rollout)
        resolved = functools.partial(self._settle_alone, settled)
        job = Job(self._components[0].scorer, (rollout,), group, 0, context, resolved)
        self._alone[job] = None
        self._open_groups[rollout.step, ticket.source] += 1
        self._submitted += 1
        self._dispatch(job)
        return job

    def _settle_alone(self, settled: Callable[[Reward], None], job: Job, rewards: tuple[Reward, ...]) -> None:
        del self._alone[job]
        (rollout,), (reward,), source = job.rollouts, rewards, job.group.ticket.source
        self._count(reward)
        if self._recorder is not None:
            at_s, waited_s = self._loop.time(), job.waited_s
            self._recorder.emit(verdict_event(rollout, reward, at_s=at_s, waited_s=waited_s, source=source))
        self._one_less_open(rollout.step, source)
        settled(reward)

    def _check_not_halted(self) -> None:
        if self._halted is not None:
            raise type(self._halted)(str(self._halted))

    @property
    def halted(self) -> AgentHalted | None:
        """Why the agent stopped for good, if it did."""
        return self._halted

    def _put_into_groups(self, rollouts: Sequence[Rollout], ticket: Ticket, now: float) -> list[PendingGroup]:
        """Puts every rollout into its group and returns the groups; if one does not fit, takes all out again."""
        groups: list[PendingGroup] = []
        num_known = self._num_groups
        try:
            for rollout in rollouts:
                group = self._group_of(rollout, ticket, now)
                group.put(rollout)
                groups.append(group)
                if group.number <= num_known:
                    group.ticket._wake()  # a wait for missing rollouts must check again
        except BaseException:
            for rollout, group in zip(rollouts, groups, strict=False):
                group.take_out(rollout)
                if group.num_in == 0:
                    self._forget(group)
                    ticket._drop_group(group)
            raise
        return groups

    def _group_of(self, rollout: Rollout, ticket: Ticket, now: float) -> PendingGroup:
        if not isinstance(rollout, Rollout):
            raise InvalidInput(f"submit takes rewardflow.Rollout records, got {type(rollout).__name__}")
        key = (ticket.run, rollout.step, rollout.group_id)
        group = self._groups.get(key)
        if group is None:
            self._num_groups += 1
            group = PendingGroup(rollout, self._num_groups, ticket, self._judges_groups, now)
            self._groups[key] = group
            self._open_groups[rollout.step, ticket.source] += 1
            ticket._add_group(group)
        return group

    def _forget(self, group: PendingGroup) -> None:
        """Removes a group, and drops its step from the count of open ones."""
        del self._groups[group.ticket.run, group.step, group.group_id]
        self._one_less_open(group.step, group.ticket.source, was_used=bool(group.num_in))

    def _one_less_open(self, step: int, source: str, *, was_used: bool = True) -> None:
        """Counts a group, or a rollout alone, as over; the last one of its step completes the step's aggregate."""
        self._open_groups[step, source] -= 1
        if not self._open_groups[step, source]:
            del self._open_groups[step, source]
            if self._recorder is not None and was_used:
                self._recorder.step_idle(step, source)

    def _jobs_for(self, group: PendingGroup, rollout: Rollout, context: contextvars.Context) -> Iterator[Job]:
        for number, component in enumerate(self._components):
            if component.scorer.loaded.unit == "rollout":
                members: tuple[Rollout, ...] = (rollout,)
            elif group.is_whole and not group.columns[number].is_called:
                group.columns[number].is_called = True
                members = group.members()
            else:
                continue
            yield Job(component.scorer, members, group, number, context, self._on_resolved)

    def _begin(self, jobs: Sequence[Job]) -> None:
        """Looks the jobs up in the journal first; jobs not found are decided locally by the reward, or called."""
        journal, reuse = self._journal, self._settings.reuse
        if journal is None and reuse != "content":
            for job in jobs:
                self._dispatch(job)
            return
        for job in jobs:
            run = None if reuse == "content" else job.group.ticket.run
            job.keys = verdict_keys(job.scorer.loaded.identity, job.rollouts, run=run)
        if journal is None or reuse == "off":
            for job in jobs:
                self._call_or_follow(job)
            return
        keys = [key for job in jobs for key in job.keys]
        failures = reuse == "sample" and self._settings.replay_failures
        journal.find(keys, lambda known: self._found(jobs, known), failures=failures)

    def _found(self, jobs: Sequence[Job], known: Mapping[bytes, Reward]) -> None:
        for job in jobs:
            if job.is_done:
                continue
            if job.keys and all(key in known for key in job.keys):
                rewards = tuple(known[key] for key in job.keys)
                job.keys = ()  # the journal has it already
                job.resolve(rewards)
            else:
                self._call_or_follow(job)

    def _call_or_follow(self, job: Job) -> None:
        if self._deduplicator is None or len(job.keys) != 1:
            self._dispatch(job)
        elif (reward := self._deduplicator.known(job)) is not None:
            job.keys = ()
            job.resolve((reward,))
        elif not self._deduplicator.follow(job):
            self._dispatch(job)

    def _dispatch(self, job: Job) -> None:
        self._add_job[job.column](job)

    # -- out ---------------------------------------------------------------------------------------------------------

    def _resolved(self, job: Job, rewards: tuple[Reward, ...]) -> None:
        """Writes a job's outcome to the journal, then passes it to the group."""
        journal = self._journal
        unpaid = rewards[0].kind in UNDECIDED_KINDS and rewards[0].cost_usd == 0
        if journal is None or not job.keys or unpaid:
            self._land(job, rewards)
            return
        now_unix_s = time.time()
        loaded, name = job.scorer.loaded, job.scorer.name
        last = job.rollouts[-1]
        if job.num_calls:
            self._components[job.column].dispatcher.saving()
        for rollout, reward, key in zip(job.rollouts, rewards, job.keys, strict=True):
            entry = JournalEntry(
                key=key,
                run=job.group.ticket.run,
                reward=name,
                identity=loaded.identity,
                rollout=rollout,
                verdict=reward,
                at_s=now_unix_s,
            )
            # Rows are committed in order, so the last one on disk means all of them are.
            journal.write(entry, (lambda _: self._saved(job, rewards)) if rollout is last else _ignore)

    def _saved(self, job: Job, rewards: tuple[Reward, ...]) -> None:
        if job.num_calls:
            is_on_disk = self._journal is not None and self._journal.has_saved_all
            saved_usd = sum([reward.cost_usd for reward in rewards]) if is_on_disk else 0.0
            self._components[job.column].dispatcher.saved(job, saved_usd)
        self._land(job, rewards)

    def _land(self, job: Job, rewards: tuple[Reward, ...]) -> None:
        group, number = job.group, job.column
        if group.is_delivered:  # `abandon` delivered it before the journal answered
            return
        if self._logs or group.ticket.sink is not None:
            note = Note(job.waited_s, time.time())
            for rollout in job.rollouts:
                group.notes[rollout.index] = note
        is_complete = group.land(group.columns[number], job.rollouts, rewards)
        group.ticket._on_verdicts(group, job.rollouts, rewards)
        if self._deduplicator is not None and len(job.keys) == 1:
            self._release_followers(self._deduplicator, job, rewards[0])
        if is_complete:
            self._complete_column(group, number)
        elif not group.is_whole and group.num_outstanding == 0:
            group.ticket._wake()  # a wait may now depend only on rollouts that are never submitted

    def _release_followers(self, deduplicator: Deduplicator, leader: Job, reward: Reward) -> None:
        for follower in deduplicator.release(leader, reward):
            if follower.is_done:
                continue
            if reward.value is None:
                self._call_or_follow(follower)
            else:
                follower.keys = ()
                follower.resolve((free_copy(reward),))

    def _complete_column(self, group: PendingGroup, number: int, why_cut_short: str | None = None) -> None:
        column = group.columns[number]
        if column.is_closed:
            return
        column.is_closed = True
        post_process = self._components[number].scorer.loaded.post_process
        is_whole = group.num_in == group.size  # not cancelled before its last rollout came
        if post_process is None:
            self._finish_column(group, number)
        elif self._is_closing or not is_whole:
            self._give_up_column(group, number, why_cut_short or (_NOT_FINAL if is_whole else _NOT_WHOLE))
            self._finish_column(group, number)
        else:
            self._tasks.create_task(self._post_process(group, number, post_process))

    def _give_up_column(self, group: PendingGroup, number: int, why: str = _NOT_FINAL) -> None:
        """Fails the scores of a column whose post-processing will not run: they are not what the user asked for."""
        column = group.columns[number]
        if self._components[number].scorer.loaded.post_process is not None:
            rewards = [
                reward if reward.value is None else fail(reward, "cancelled", why)
                for reward in group.column_rewards(column)
            ]
            group.replace(column, rewards)

    async def _post_process(self, group: PendingGroup, number: int, post_process: Callable[..., object]) -> None:
        column = group.columns[number]
        rewards = group.column_rewards(column)
        name = f"{self._components[number].name}.post_process_scores"
        returned, problem = await self._hooks.run(name, post_process, scores_for_post_process(rewards))
        if problem is None:
            rewards = apply_post_process(rewards, returned)
        else:
            rewards = tuple(fail(reward, "user_error", problem) for reward in rewards)
        group.replace(column, rewards)
        self._finish_column(group, number)

    def _finish_column(self, group: PendingGroup, number: int) -> None:
        group.columns[number].is_final = True
        if all(column.is_final for column in group.columns):
            self._deliver(group)

    def _deliver(self, pending: PendingGroup) -> None:
        group = pending.scored(self._components)
        self._delivered += 1
        for reward in group.rewards:
            self._count(reward)
        if self._recorder is not None:
            record_group(self._recorder, pending, group, at_s=self._loop.time())
        self._forget(pending)
        pending.is_delivered = True
        pending.jobs = []  # they refer to the group: without this, only the garbage collector would free both
        is_stranded = self._halted is not None and any(reward.kind in UNDECIDED_KINDS for reward in group.rewards)
        pending.ticket._deliver(pending, group, is_stranded=is_stranded)
        if self._is_draining:
            self._stop_tickets_if_drained()
        if self._logs:
            self._delivered_for_log[pending.ticket].append(pending)
            self.call_log_if_over(pending.ticket)

    # -- the end -----------------------------------------------------------------------------------------------------

    def cancel(
        self, groups: Iterable[PendingGroup], kind: FailureKind, message: str, *, but_running: bool = False
    ) -> None:
        """Gives every rollout without a verdict in these groups a failed verdict of this kind.

        `but_running` lets calls that are out go on, and their verdicts count.
        """
        now = self._loop.time()
        for group in list(groups):
            group.cut_short(Reward(kind=kind, error=message))
            for job in group.jobs:
                if not (but_running and job.num_running):
                    job.fail(kind, message, now)
            for number, column in enumerate(group.columns):
                if column.num_in == group.num_expected:
                    self._complete_column(group, number, message)
        for component in self._components:
            component.dispatcher.prune()
            if component.decider is not None:
                component.decider.prune()

    def _cancel_alone(self, kind: FailureKind, message: str) -> None:
        now = self._loop.time()
        for job in list(self._alone):
            job.fail(kind, message, now)

    def cancel_unwanted(self, keys: Iterable[tuple[str, int, str]], is_wanted: Callable[[str, Rollout], bool]) -> None:
        """Cancels those of these groups of which no rollout is wanted, and the unwanted calls of the others."""
        unwanted: list[PendingGroup] = []
        now = self._loop.time()
        for key in keys:
            group = self._groups.get(key)
            if group is None:
                continue
            if not any(is_wanted(key[0], rollout) for rollout in group.members()):
                unwanted.append(group)
                continue
            for job in list(group.jobs):
                if not any(is_wanted(key[0], rollout) for rollout in job.rollouts):
                    job.fail("cancelled", _UNWANTED, now)
        self.cancel(unwanted, "cancelled", _UNWANTED)

    def cancel_run(self, run: str) -> None:
        """Cancels all open groups of a run."""
        self.cancel([group for group in self._groups.values() if group.ticket.run == run], "cancelled", _UNWANTED)

    def missing_in(self, run: str, step: int, group_id: str) -> tuple[int, ...]:
        """Returns the indices of a group that were not submitted yet; none if the group is not open."""
        group = self._groups.get((run, step, group_id))
        return () if group is None else group.missing()

    def num_outstanding_in(self, run: str, step: int, group_id: str) -> int:
        """Returns how many verdicts of an open group are still to come."""
        group = self._groups.get((run, step, group_id))
        return 0 if group is None else group.num_outstanding

    def give_up(self, run: str, step: int, group_id: str, message: str) -> None:
        """Cancels a group that will never be whole."""
        group = self._groups.get((run, step, group_id))
        if group is not None:
            self.cancel([group], "cancelled", message)

    def verdict_on(self, run: str, rollout: Rollout) -> Reward | None:
        """Returns the verdict on a rollout of an open group, if the group holds this rollout and its verdict."""
        group = self._groups.get((run, rollout.step, rollout.group_id))
        known = None if group is None or group.size != rollout.group_size else group.rollouts[rollout.index]
        if group is None or known is None or not has_same_inputs(known, rollout):
            return None
        return group.verdict_on(rollout.index, self._components)

    def abandon(self) -> None:
        """Delivers groups that never became final (the journal hung, a hook was cut off), and ends every wait."""
        for group in list(self._groups.values()):
            group.fill(Reward(kind="cancelled", error=_NOT_FINAL))
            for number, column in enumerate(group.columns):
                if not column.is_final:
                    self._give_up_column(group, number)
            self._deliver(group)
        for ticket in list(self._tickets):
            ticket._stop(self._halted)

    def halt(self, error: AgentHalted, *, resolve_ended: Callable[[], None] | None = None) -> None:
        """Stops for good: cancels everything, and ends every wait with this error.

        When the journal cannot be written, calls that are out may end first, because they are being paid for.
        `resolve_ended` resolves jobs whose calls have ended, before the others are cancelled.
        """
        if self._halted is not None or self._is_closing:
            return
        self._halted = error
        if resolve_ended is not None:
            resolve_ended()
        kind: FailureKind = "budget" if isinstance(error, BudgetExhausted) else "outage"
        if isinstance(error, JournalWriteFailed):
            kind = "cancelled"
            self._is_draining = True
            for component in self._components:
                component.dispatcher.drain()
        self.cancel(self._groups.values(), kind, str(error), but_running=self._is_draining)
        self._cancel_alone(kind, str(error))
        self._stop_tickets_if_drained()

    def _stop_tickets_if_drained(self) -> None:
        if self._is_draining and self._groups:
            return
        self._is_draining = False
        for ticket in list(self._tickets):
            ticket._stop(self._halted)

    def close(self) -> None:
        self._is_closing = True
        self.cancel(self._groups.values(), "cancelled", "the agent was closed")
        self._cancel_alone("cancelled", "the agent was closed")

    def call_log_if_over(self, ticket: Ticket) -> None:
        """Calls the rewards' `log` once for a ticket whose last group is complete."""
        if not self._logs or not ticket.is_over or self._is_closing:
            return
        groups = sorted(self._delivered_for_log.pop(ticket, ()), key=lambda group: group.number)
        for number, component in enumerate(self._components):
            loaded = component.scorer.loaded
            if loaded.log is not None and groups:
                columns = zip(*(row for group in groups for row in group.log_rows(number)), strict=True)
                lists = [list(column) for column in columns]
                self._tasks.create_task(self._run_log(f"{component.name}.log", loaded.log, *lists))
            if loaded.log_verdicts is not None and groups:
                verdicts = [verdict for group in groups for verdict in group.logged_verdicts(number)]
                self._tasks.create_task(self._run_log(f"{component.name}.log_verdicts", loaded.log_verdicts, verdicts))

    async def _run_log(self, name: str, log: Callable[..., object], *lists: object) -> None:
        await self._hooks.run(name, log, *lists)

    # -- statistics --------------------------------------------------------------------------------------------------

    def _count(self, reward: Reward) -> None:
        if reward.value is None:
            self._failed[reward.kind or "user_error"] += 1
        else:
            self._scored += 1
        if reward.imputed:
            self._imputed += 1
        if reward.cached:
            self._cached += 1

    def statistics(self) -> AssemblyStatistics:
        return AssemblyStatistics(
            submitted=self._submitted,
            delivered=self._delivered,
            pending_groups=len(self._groups),
            scored=self._scored,
            failed=dict(self._failed),
            imputed=self._imputed,
            cached=self._cached,
        )


def _ignore(_: JournalEntry) -> None:
    """Does nothing: the row is saved, but its group waits for the last row of the call."""
