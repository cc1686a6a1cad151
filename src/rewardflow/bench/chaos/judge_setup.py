"""The judge that the campaign scores with, and how the hostile server mixes its answers.

Always true: the judge sends one known key, so that the key can be searched for wherever it must not be.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any

from rewardflow.bench.chaos.exchange import (
    COMPLETION_USD_PER_MILLION,
    CRITERION,
    PROMPT_USD_PER_MILLION,
    SCALE,
    Misbehaviour,
)
from rewardflow.bench.chaos.hostile_server import HONEST, MODEL, Choose
from rewardflow.services.judges.llm_judge import LLMJudge

KEY_VARIABLE = "REWARDFLOW_CHAOS_KEY"
KEY = "sk-chaos-5f0b7c2e9d4a41c8"


def judge_at(base_url: str, **fields: Any) -> LLMJudge:
    """Returns the judge of the campaign. The scale is so fine that two rollouts hardly ever have the same score."""
    os.environ[KEY_VARIABLE] = KEY
    settings: dict[str, Any] = {
        "model": MODEL,
        "base_urls": [base_url],
        "api_key_env": KEY_VARIABLE,
        "criteria": [{"name": CRITERION, "low": 0, "high": SCALE}],
        "sampling": {"temperature": 0.0, "max_tokens": 100},
        "prices": {
            "input_usd_per_million": PROMPT_USD_PER_MILLION,
            "output_usd_per_million": COMPLETION_USD_PER_MILLION,
        },
    }
    return LLMJudge(**(settings | fields))


def mixture(seed: int, misbehaviours: Sequence[Misbehaviour], honest_share: float) -> Choose:
    """Chooses by seed, rollout and call, so that the order in which calls arrive does not matter."""
    weights = [one.weight for one in misbehaviours]

    def choose(rollout: int, call: int) -> Misbehaviour:
        chance = random.Random(f"{seed}/{rollout}/{call}/how")
        if chance.random() < honest_share:
            return HONEST
        return chance.choices(misbehaviours, weights)[0]

    return choose
