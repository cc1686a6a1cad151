"""Asks once when the same thing is asked twice at the same time (`reuse="content"`).

Always true: of the jobs with one key, one leads and is called; the others get its score for free, or, if it failed,
the next of them leads.
"""

from __future__ import annotations

from rewardflow.reward.job import Job


class Sharing:
    def __init__(self) -> None:
        self._followers: dict[bytes, list[Job]] = {}

    def follow(self, job: Job) -> bool:
        """Whether an equal job is already out; then this one waits for it."""
        followers = self._followers.get(job.keys[0])
        if followers is None:
            self._followers[job.keys[0]] = []
            return False
        followers.append(job)
        return True

    def release(self, leader: Job) -> list[Job]:
        """The jobs that waited for this one."""
        return self._followers.pop(leader.keys[0], [])
