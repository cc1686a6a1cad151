"""Asks once when the same thing is asked twice (`reuse="content"`).

Always true: of the jobs with one key, one leads and is called; the others get its score for free, or, if it failed, the
next of them leads. Without a journal, scores are remembered here for as long as the agent is open.
"""

from __future__ import annotations

import dataclasses

from rewardflow.reward.groups.job import Job
from rewardflow.types import Reward


class Deduplicator:
    def __init__(self, *, remembers: bool) -> None:
        self._followers: dict[bytes, list[Job]] = {}
        self._leaders: dict[bytes, Job] = {}
        self._known: dict[bytes, Reward] | None = {} if remembers else None

    def known(self, job: Job) -> Reward | None:
        """The score that an equal job got earlier."""
        return None if self._known is None else self._known.get(job.keys[0])

    def follow(self, job: Job) -> bool:
        """Whether an equal job is already out; then this one waits for it, otherwise it leads."""
        key = job.keys[0]
        if key in self._leaders:
            self._followers[key].append(job)
            return True
        self._leaders[key] = job
        self._followers[key] = []
        return False

    def release(self, job: Job, reward: Reward) -> list[Job]:
        """The jobs that waited for this one, if it led."""
        key = job.keys[0]
        if self._leaders.get(key) is not job:
            return []
        del self._leaders[key]
        if self._known is not None and reward.value is not None:
            self._known[key] = free_copy(reward)
        return self._followers.pop(key)


def free_copy(reward: Reward) -> Reward:
    """The same verdict for another rollout, which costs nothing."""
    return dataclasses.replace(reward, cached=True, cost_usd=0.0, tokens=0, attempts=0)
