"""Decides whether a failed call is the fault of its rollout or of the service.

Always true: a failure uses up an attempt of its rollout, unless the endpoint's breaker is open or opens before the
endpoint answers another call; a rollout that hung, or used up an attempt, before another rollout was answered is a
suspect, and its further failures open no breaker.

A call that hangs looks the same in both cases. Only other rollouts can tell: if they are answered, the service works.
So a rollout that failed is held back until the service has answered another call, or until only such rollouts are
left; then the one that has waited longest goes next.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rewardflow.reward.groups.job import Job
    from rewardflow.reward.limits.endpoints import Endpoint


class Blame:
    """The failures of one account that no answer has followed yet, and the jobs that are held back for them."""

    def __init__(self, window: int) -> None:
        self._window = window  # a breaker opens after at most this many failures in a row
        self._undecided: dict[Endpoint, deque[Job]] = {}
        self._held_back: deque[Job] = deque()
        self._excused: set[Job] = set()
        self._answered_s = -math.inf

    @property
    def was_answered(self) -> bool:
        """Whether the service has ever answered a call."""
        return self._answered_s > -math.inf

    @property
    def held_back(self) -> list[Job]:
        return [job for job in self._held_back if not job.is_done]

    @property
    def excused(self) -> list[Job]:
        """The jobs that failed since the last answer while a breaker was open: waiting, or in flight as a probe."""
        return [job for job in self._excused if not job.is_done]

    def failed(self, job: Job, endpoint: Endpoint) -> None:
        """Records a failure that used up an attempt."""
        self._undecided.setdefault(endpoint, deque(maxlen=self._window)).append(job)

    def excuse(self, job: Job) -> None:
        """Records a failure in an outage, which used up no attempt."""
        self._excused.add(job)

    def answered(self, endpoint: Endpoint, now: float) -> list[Job]:
        """Records an answer; returns the jobs that were held back and may be asked about again."""
        self._answered_s = now
        if self._undecided:
            for job in self._undecided.pop(endpoint, ()):
                job.is_suspect = True
        if self._excused:
            for job in self._excused:
                job.is_suspect = job.is_suspect or (job.fault is not None and job.fault.kind == "timeout")
            self._excused.clear()
        if not self._held_back:
            return []
        released = self.held_back
        self._held_back.clear()
        return released

    def opened(self, endpoint: Endpoint) -> None:
        """Gives the attempts back that the outage used up before the breaker opened."""
        for job in self._undecided.pop(endpoint, ()):
            job.num_failures = max(0, job.num_failures - 1)

    def holds_back(self, job: Job, failed_s: float) -> bool:
        """Holds a job back that failed at that time, unless the service has answered since; says whether it did."""
        if self._answered_s > failed_s:
            return False
        self._held_back.append(job)
        return True

    def take_nowait(self) -> Job | None:
        """Returns the job that was held back longest, suspects last; None if there is none."""
        waiting = self.held_back
        if not waiting:
            self._held_back.clear()
            return None
        chosen = next((job for job in waiting if not job.is_suspect), waiting[0])
        waiting.remove(chosen)
        self._held_back = deque(waiting)
        return chosen
