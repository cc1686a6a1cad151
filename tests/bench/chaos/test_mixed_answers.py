"""Mixed answers: the agent loses nothing, and a client with a mistake loses."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from rewardflow.bench.chaos.judge_setup import judge_at
from rewardflow.bench.chaos.mixed_answers import mixed_answers
from rewardflow.errors import CallError
from rewardflow.services.judges.llm_judge import LLMJudge
from rewardflow.types import Reward, Rollout

SEED = 1008  # 64 calls at once


def judge_with_default(base_url: str, **fields: Any) -> Any:
    """Returns a judge that makes a failure a score of 0, as careless clients do."""
    judge = judge_at(base_url, **fields)

    async def score(rollout: Rollout) -> Reward:
        try:
            return await judge.compute_score(rollout)
        except CallError:
            return Reward(value=0.0)

    return score


def judge_of_previous_rollout(base_url: str, **fields: Any) -> Any:
    """Returns a judge that gives each rollout the verdict of the one before it."""
    judge: LLMJudge = judge_at(base_url, **fields)
    kept: list[Reward] = []

    async def score(rollout: Rollout) -> Reward:
        kept.append(await judge.compute_score(rollout))
        return kept[-2] if len(kept) > 1 else kept[0]

    return score


def test_the_agent_loses_nothing(tmp_path: Path) -> None:
    tried = asyncio.run(mixed_answers(SEED, tmp_path))
    assert tried.count == 600
    assert tried.complaints == ()


def test_a_client_that_scores_failures_with_zero_loses(tmp_path: Path) -> None:
    assert asyncio.run(mixed_answers(SEED, tmp_path, judge=judge_with_default)).num_lost > 50


def test_a_client_that_swaps_answers_loses(tmp_path: Path) -> None:
    assert asyncio.run(mixed_answers(SEED, tmp_path, judge=judge_of_previous_rollout)).num_lost > 300
