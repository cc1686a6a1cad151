"""Deduplicates calls: equal jobs share one call (`reuse="content"`).

Always true: of the jobs with the same key, one leads and is called. The others follow: they get its score for free, or,
if it failed, the next of them leads. Without a journal, this module remembers scores for as long as the agent is open.
"""

from __future__ import annotations

import dataclasses

from rewardflow.reward.groups.job import Job
from rewardflow.types import Reward


class Deduplicator:
    """The leading jobs in flight, by key, with the jobs that follow each."""

    def __init__(self, *, remembers: bool) -> None:
        self._followers: dict[bytes, list[Job]] = {}
        self._leaders: dict[bytes, Job] = {}
        self._known: dict[bytes, Reward] | None = {} if remembers else None

    def known(self, job: Job) -> Reward | None:
        """Returns the score that an equal job got earlier."""
        return None if self._known is None else self._known.get(job.keys[0])

    def follow(self, job: Job) -> bool:
        """Returns True if an equal job is in flight, and makes this job wait for it; otherwise this job leads."""
        key = job.keys[0]
        if key in self._leaders:
            self._followers[key].append(job)
            return True
        self._leaders[key] = job
        self._followers[key] = []
        return False

    def release(self, job: Job, reward: Reward) -> list[Job]:
        """Returns the jobs that waited for this one, if it led."""
        key = job.keys[0]
        if self._leaders.get(key) is not job:
            return []
        del self._leaders[key]
        if self._known is not None and reward.value is not None:
            self._known[key] = free_copy(reward)
        return self._followers.pop(key)


def free_copy(reward: Reward) -> Reward:
    """Returns the same verdict for another rollout, at no cost."""
    return dataclasses.replace(reward, cached=True, cost_usd=0.0, tokens=0, attempts=0)
