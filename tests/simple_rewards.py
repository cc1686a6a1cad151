"""Small rewards that many tests score with. Most give the number that the response says, after one second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from agent_at_work import now

import rewardflow as rf


async def number(solution_str: str) -> float:
    await asyncio.sleep(1)
    return float(solution_str)


def plain_number(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
) -> float:
    """Has verl's signature, and runs in a thread."""
    return float(solution_str)


async def async_number(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
) -> float:
    """Has verl's signature, and runs on the loop."""
    await asyncio.sleep(1)
    return float(solution_str)


class PlainJudge:
    def compute_score(self, data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
        return float(solution_str)


class AsyncJudge:
    async def compute_score(
        self, data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None
    ) -> float:
        await asyncio.sleep(1)
        return float(solution_str)


class GroupJudge:
    def score_group(self, rollouts: Sequence[rf.Rollout]) -> list[float]:
        return [float(rollout.response) for rollout in rollouts]


class AsyncGroupJudge:
    async def score_group(self, rollouts: Sequence[rf.Rollout]) -> list[float]:
        await asyncio.sleep(1)
        return [float(rollout.response) for rollout in rollouts]


class PostProcessing:
    """Fails for responses that are no numbers; `seen` holds the scores that it was given."""

    def __init__(self, change: Callable[[list[float]], Any] = list) -> None:
        self.change = change
        self.seen: list[list[float]] = []

    async def compute_score(self, solution_str: str) -> float:
        await asyncio.sleep(1)
        return float(solution_str)

    def post_process_scores(self, scores: list[float]) -> Any:
        self.seen.append(list(scores))
        return self.change(scores)


class Logging:
    def __init__(self) -> None:
        self.logged: list[tuple[list[Any], ...]] = []
        self.num_closed = 0

    async def compute_score(self, solution_str: str, extra_info: Any) -> dict[str, Any]:
        await asyncio.sleep(float(solution_str))
        if solution_str == "3":
            raise ValueError("three")
        return {"score": float(solution_str), "query": f"q{solution_str}", "explanation": f"e{solution_str}", "x": 1}

    def log(self, timestamps: Any, queries: Any, results: Any, latencies: Any, group_uids: Any) -> None:
        self.logged.append((timestamps, queries, results, latencies, group_uids))

    def close(self) -> None:
        self.num_closed += 1


class ScriptedReward:
    """Follows a script for each response, and remembers when each attempt started and ended.

    A number is a score, an exception is raised, anything else is called; the last one goes on for ever.
    """

    def __init__(self, *turns: Any, takes_s: float = 0.0) -> None:
        self.turns = turns
        self.takes_s = takes_s
        self.starts: dict[str, list[float]] = {}
        self.ends: dict[str, list[float]] = {}
        self.endpoints: dict[str, list[str | None]] = {}

    async def compute_score(self, solution_str: str) -> Any:
        starts = self.starts.setdefault(solution_str, [])
        starts.append(now())
        call = rf.current_call()
        assert call is not None
        self.endpoints.setdefault(solution_str, []).append(call.endpoint)
        turn = self.turns[min(len(starts), len(self.turns)) - 1]
        try:
            await asyncio.sleep(self.takes_s)
        finally:
            self.ends.setdefault(solution_str, []).append(now())
        if isinstance(turn, BaseException):
            raise turn
        return await turn() if callable(turn) else turn

    @property
    def num_calls(self) -> int:
        return sum(map(len, self.starts.values()))
