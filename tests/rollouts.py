"""Rollouts to score, for tests that only care what their responses say."""

from __future__ import annotations

from typing import Any

import rewardflow as rf


def rollout(response: str, ground_truth: Any = None, **fields: Any) -> rf.Rollout:
    """One that is a group of its own."""
    return rf.Rollout(group_id="q", response=response, ground_truth=ground_truth, **fields)


def group(name: str, *responses: str, **fields: Any) -> list[rf.Rollout]:
    """A whole group, one rollout for each response."""
    size = len(responses)
    return [
        rf.Rollout(group_id=name, index=index, group_size=size, response=response, **fields)
        for index, response in enumerate(responses)
    ]


def singles(*responses: str, **fields: Any) -> list[rf.Rollout]:
    """Groups of one, numbered from 0."""
    return [rf.Rollout(group_id=str(i), response=response, **fields) for i, response in enumerate(responses)]


def numbered(count: int, step: int = 0, prefix: str = "") -> list[rf.Rollout]:
    """Groups of one whose responses are their numbers, from 0."""
    return [rf.Rollout(group_id=f"{prefix}{i}", response=str(i), step=step) for i in range(count)]
