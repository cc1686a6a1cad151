"""Lets a reward decide without a call (its `decide_locally` hook), before the job takes a slot.

Always true: a job that is decided here takes no slot, does not count against the rate, costs nothing, and has no
attempts. A job left open goes on to its dispatcher, once. A job whose hook raised or hung fails. The oldest step goes
first. The loop is not blocked: quick hooks decide a few jobs a turn, the others run in threads.

The hook runs in the context of the later call, so the call can read context variables that the hook sets.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rewardflow.reward.calls.deadlines import Deadline, Deadlines
from rewardflow.reward.calls.faults import user_fault
from rewardflow.reward.code.context_transfer import may_be_ctrl_c
from rewardflow.reward.code.contract import with_own_values
from rewardflow.reward.code.current_call import Call
from rewardflow.reward.code.results import parse_result
from rewardflow.reward.code.thread_pool import ThreadPool
from rewardflow.reward.groups.job import Job
from rewardflow.reward.settings import LimitSettings
from rewardflow.types import Rollout

_THREADS = 8
_QUICK_PER_TURN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDeciderStatistics:
    """Counts of one hook. `decided`: scores without a call; `abandoned`: threads stuck in a hook that timed out."""

    decided: int
    left_open: int
    failed: int
    waiting: int
    running: int
    abandoned: int


class LocalDecider:
    """Runs one reward's hook, in its own threads: a hook that hangs must not delay hooks that post-process."""

    def __init__(
        self,
        name: str,
        hook: Callable[[Rollout], Any],
        *,
        is_quick: bool,
        limits: LimitSettings,
        tasks: asyncio.TaskGroup,
        left_open: Callable[[Job], None],
    ) -> None:
        self._name = name
        self._hook = hook
        self._is_quick = is_quick
        self._limits = limits
        self._tasks = tasks
        self._pass_on = left_open
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()  # for runners: independent of who submitted the rollouts
        self._deadlines = Deadlines(self._loop)
        self._threads: ThreadPool | None = None
        self._queue: list[tuple[int, int, int, int, int, Job]] = []
        self._sequence = 0
        self._is_pump_due = False
        self._num_runners = 0
        self._running: dict[Deadline, Job] = {}
        self._num_decided = self._num_left_open = self._num_failed = 0

    def add(self, job: Job) -> None:
        """Queues a job by age: step, then group by its position, then index."""
        rollout = job.rollouts[0]
        self._sequence += 1
        group = job.group
        entry = (rollout.step, group.position, group.number, rollout.index, self._sequence, job)
        heapq.heappush(self._queue, entry)
        self._wake()

    def prune(self) -> None:
        """Drops jobs that were cancelled in the queue, and abandons hooks whose job was cancelled."""
        self._queue = [entry for entry in self._queue if not entry[-1].is_done]
        heapq.heapify(self._queue)
        for deadline, job in self._running.items():
            if job.is_done:
                deadline.expire()

    async def aclose(self, timeout_s: float) -> None:
        if self._threads is not None:
            await self._threads.aclose(timeout_s)

    # -- which job is next -------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._is_pump_due:
            self._is_pump_due = True
            self._loop.call_soon(self._pump, context=self._context)

    def _pump(self) -> None:
        self._is_pump_due = False
        if not self._is_quick:
            for _ in range(min(_THREADS - self._num_runners, len(self._queue))):
                self._num_runners += 1
                self._tasks.create_task(self._run())
            return
        for _ in range(_QUICK_PER_TURN):
            job = self._take_nowait()
            if job is None:
                return
            self._decide(job)
        self._wake()

    def _take_nowait(self) -> Job | None:
        return heapq.heappop(self._queue)[-1] if self._queue else None

    # -- one job -----------------------------------------------------------------------------------------------------

    def _decide(self, job: Job) -> None:
        """Runs the hook on the loop; an exception becomes a failed verdict."""
        context = job.context.copy()
        try:
            answer = context.run(self._hook, with_own_values(job.rollouts[0]))
        except BaseException as error:
            if may_be_ctrl_c(error):
                raise
            self._fail(job, error)
        else:
            self._conclude(job, context, answer)

    async def _run(self) -> None:
        """Decides one job after another in a thread, each within the time limit of a call."""
        threads, limit_s = self._started_threads(), self._limits.timeout_s
        try:
            while (job := self._take_nowait()) is not None:
                context = job.context.copy()
                rollout = with_own_values(job.rollouts[0])
                kwargs = {"context": context, "hook": self._hook, "rollout": rollout}
                deadline = Deadline(self._deadlines, None if limit_s is None else self._loop.time() + limit_s)
                self._running[deadline] = job
                try:
                    with deadline:
                        answer = await threads.call(kwargs, Call((rollout,)), self._context)
                except Exception as error:
                    self._fail(job, error, is_expired=deadline.is_expired)
                else:
                    self._conclude(job, context, answer)
                finally:
                    del self._running[deadline]
        finally:
            self._num_runners -= 1

    def _started_threads(self) -> ThreadPool:
        if self._threads is None:
            self._threads = ThreadPool(
                _run_in, size=_THREADS, max_abandoned=self._limits.max_abandoned, name=f"{self._name}-decide"
            )
            self._threads.start(self._loop)
        return self._threads

    def _conclude(self, job: Job, context: contextvars.Context, answer: Any) -> None:
        if job.is_done:
            return
        if answer is None:
            self._num_left_open += 1
            job.context = context
            self._pass_on(job)
            return
        reward = parse_result(answer)
        reward._fill_measures(0, 0.0, 0.0, 0)
        if reward.value is None:
            self._num_failed += 1
        else:
            self._num_decided += 1
        job.resolve((reward,))

    def _fail(self, job: Job, error: BaseException, *, is_expired: bool = False) -> None:
        if job.is_done:
            return
        self._num_failed += 1
        name, now = f"{self._name}.decide_locally", self._loop.time()
        if is_expired:
            killed = f" and {error} was killed" if str(error) else ""
            job.fail("timeout", f"{name} did not end within {self._limits.timeout_s:g} s{killed}", now)
        else:
            fault = user_fault(error)
            job.fail("user_error", f"{name} failed: {fault.message}", now, fault.trace)

    def statistics(self) -> LocalDeciderStatistics:
        return LocalDeciderStatistics(
            decided=self._num_decided,
            left_open=self._num_left_open,
            failed=self._num_failed,
            waiting=len(self._queue),
            running=len(self._running),
            abandoned=0 if self._threads is None else self._threads.statistics().abandoned,
        )


def _run_in(context: contextvars.Context, hook: Callable[[Rollout], Any], rollout: Rollout) -> Any:
    """Runs the hook in the job's own context; in a copy, the variables that the hook sets would be lost."""
    return context.run(hook, rollout)
