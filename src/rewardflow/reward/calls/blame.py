"""Decides whether a failed call is the fault of its rollout or of the service.

Always true: a failure uses up an attempt of its rollout, unless the endpoint's breaker is open or opens before the
endpoint answers another call; a rollout that hung, or used up an attempt, before a call started that was answered is a
suspect, and its further failures open no breaker. Once the service has answered, a rollout that is no suspect uses up
its last of several attempts only if its prompt fails alone, or rollouts have failed for good so often that this may be
one more.

A call that hangs looks the same in both cases. Only other rollouts can tell: if they are answered, the service works.
A service that goes down may still answer calls that it had taken before, so only calls that start later can tell.
So a rollout that failed is held back until the service has answered another call, or until only such rollouts are
left; then the one that has waited longest goes next.

If too few rollouts are left to open a breaker, nothing can tell. Then the share of rollouts that failed for good before
says how likely it is that these do too; groups count, because the rollouts of one prompt often fail together. If that
is unlikely, the service is taken to be down. One prompt alone that fails is taken to be at fault, because that is
common, and waiting for the end of an outage that is none would take long.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rewardflow.reward.calls.faults import Fault
    from rewardflow.reward.groups.job import Job
    from rewardflow.reward.limits.endpoints import Endpoint


_UNLIKELY = 0.0001  # that so many groups in a row fail by themselves; an outage is likelier


class Blame:
    """The failures of one account that no answer has followed yet, and the jobs that are held back for them."""

    def __init__(self, window: int) -> None:
        self.num_open = 0  # endpoints whose breaker is open
        self._window = window  # a breaker opens after at most this many failures in a row
        self._undecided: dict[Endpoint, deque[tuple[float, Job]]] = {}  # with the time of the failure
        self._held_back: deque[Job] = deque()
        self._excused: dict[Job, float] = {}  # with the time of the last failure
        self._answered_s = -math.inf
        self._answered_start_s = -math.inf  # of the latest call that was answered
        self._num_answered = 0
        self._num_given_up = 0

    @property
    def was_answered(self) -> bool:
        """Whether the service has ever answered a call."""
        return self._answered_s > -math.inf

    def was_refused_alone(self, job: Job) -> bool:
        """Whether a call was answered that started after the service had refused the job with a 429."""
        return job.first_refused_s <= self._answered_start_s

    @property
    def held_back(self) -> list[Job]:
        return [job for job in self._held_back if not job.is_done]

    @property
    def excused(self) -> list[Job]:
        """The jobs that failed since the last answer while a breaker was open: waiting, or in flight as a probe."""
        return [job for job in self._excused if not job.is_done]

    def failed(self, job: Job, endpoint: Endpoint, now: float) -> None:
        """Records a failure that used up an attempt."""
        self._undecided.setdefault(endpoint, deque(maxlen=self._window)).append((now, job))

    def gave_up(self, fault: Fault) -> None:
        """Records that a rollout failed for good."""
        self._num_given_up += fault.kind in ("timeout", "service")

    def suspects_service(self, job: Job, endpoint: Endpoint) -> bool:
        """Whether the failures that no answer has followed show an outage, and not what these rollouts always do."""
        undecided = [one for _, one in self._undecided.get(endpoint, ())]
        if job.is_suspect or job not in undecided or not self.was_answered:
            return False
        num_groups = len({id(one.group) for one in undecided})
        share = (self._num_given_up + 1) / (self._num_given_up + self._num_answered + 2)  # not 0 before the first
        return num_groups > 1 and share**num_groups < _UNLIKELY

    def excuse(self, job: Job, now: float) -> None:
        """Records a failure in an outage, which used up no attempt."""
        self._excused[job] = now

    def answered(self, endpoint: Endpoint, started_s: float, now: float) -> list[Job]:
        """Records the answer to a call; returns the jobs that were held back and may be asked about again."""
        self._answered_s = now
        if started_s > self._answered_start_s:
            self._answered_start_s = started_s
        self._num_answered += 1
        if self._undecided:
            undecided = self._undecided.get(endpoint)
            while undecided and undecided[0][0] <= started_s:
                undecided.popleft()[1].is_suspect = True
        if self._excused:
            for job in [job for job, failed_s in self._excused.items() if failed_s <= started_s]:
                job.is_suspect = job.is_suspect or (job.fault is not None and job.fault.kind == "timeout")
                del self._excused[job]
        if not self._held_back:
            return []
        released = self.held_back
        self._held_back.clear()
        return released

    def opened(self, endpoint: Endpoint) -> None:
        """Records that a breaker opened, and gives the attempts back that the outage used up before."""
        self.num_open += 1
        for _, job in self._undecided.pop(endpoint, ()):
            job.num_failures = max(0, job.num_failures - 1)

    def closed(self) -> None:
        """Records that a breaker closed."""
        self.num_open -= 1

    def holds_back(self, job: Job, failed_s: float) -> bool:
        """Holds a job back that failed at that time, unless the service has answered since; says whether it did."""
        if self._answered_s > failed_s:
            return False
        self._held_back.append(job)
        return True

    def take_nowait(self, most_failures: float = math.inf) -> Job | None:
        """Returns the job that was held back longest, suspects last; None if none with at most so many failures."""
        waiting = self.held_back
        self._held_back = deque(waiting)
        allowed = [job for job in waiting if job.num_failures <= most_failures]
        if not allowed:
            return None
        chosen = next((job for job in allowed if not job.is_suspect), allowed[0])
        self._held_back.remove(chosen)
        return chosen
