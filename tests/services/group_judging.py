"""A group of answers in front of a group judge, which asks a scripted server."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

from scripted_server import Request, ScriptedServer, completion

import rewardflow as rf
from rewardflow.reward.code.contract import load_reward
from rewardflow.reward.code.source import RewardSource
from rewardflow.services.judges.llm_judge import LLMJudge

FENCED = re.compile(r"<<<((?:FIRST |SECOND )?ANSWER(?: \d+)?) [0-9a-f]+>>>\n(.*?)\n<<<END", re.DOTALL)


def group(*responses: str, group_id: str = "q") -> list[rf.Rollout]:
    return [
        rf.Rollout(
            group_id=group_id, index=i, group_size=len(responses), prompt="Biggest?", response=one, ground_truth="9"
        )
        for i, one in enumerate(responses)
    ]


def answers_in(request: Request) -> list[str]:
    """The answers that a judge was shown, in the order it saw them."""
    return [text for _, text in FENCED.findall(request.user_prompt)]


def say(**fields: Any) -> dict[str, Any]:
    return completion(json.dumps({"reason": "because", **fields}))


def score(
    answer: Callable[[Request], Any],
    judge: Callable[[LLMJudge], Any],
    *responses: str,
    **options: Any,
) -> tuple[list[rf.Reward], ScriptedServer]:
    async def run() -> tuple[list[rf.Reward], ScriptedServer]:
        async with ScriptedServer(answer) as server:
            reward = judge(LLMJudge(model="m", base_urls=[server.url]))
            async with rf.RewardAgent(reward, **{"max_attempts": 1, "backoff_s": 0.01, **options}) as agent:
                groups = await agent.submit(group(*responses)).all()
            return list(groups[0].rewards), server

    return asyncio.run(run())


def identity_of(judge: Callable[..., Any], *, model: str = "m", url: str = "http://a", **settings: Any) -> str:
    return load_reward(RewardSource.of(judge(judge=LLMJudge(model=model, base_urls=[url]), **settings))).identity
