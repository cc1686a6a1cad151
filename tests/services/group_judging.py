"""A group of answers in front of a group judge, which asks a scripted server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from scripted_server import Request, ScriptedServer, completion
from served_scores import score_from_server

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


def judge_group(
    answer: Callable[[Request], Any],
    judge: Callable[[LLMJudge], Any],
    *responses: str,
    **options: Any,
) -> tuple[list[rf.Reward], ScriptedServer]:
    """Scores one group with a group judge that asks an LLM judge at the server, by default without retries."""
    return score_from_server(
        ScriptedServer(answer),
        lambda url: judge(LLMJudge(model="m", base_urls=[url])),
        group(*responses),
        **{"max_attempts": 1, "backoff_s": 0.01, **options},
    )


def identity_of(judge: Callable[..., Any], *, model: str = "m", url: str = "http://a", **settings: Any) -> str:
    return load_reward(RewardSource.of(judge(judge=LLMJudge(model=model, base_urls=[url]), **settings))).identity
