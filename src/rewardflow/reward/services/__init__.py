"""Ready-made rewards: judges, reward models, rules, hybrids; each is an ordinary reward on the agent's contract.

Always true: importing this package loads none of its services; a name is imported when it is first used, so that
whoever needs a rule does not pay for an HTTP client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rewardflow.reward.services import rules as rules
    from rewardflow.reward.services.hybrids import Cascade
    from rewardflow.reward.services.json_scorer import JsonScorer
    from rewardflow.reward.services.judge import LLMJudge
    from rewardflow.reward.services.listwise import ListwiseJudge
    from rewardflow.reward.services.pairwise import PairwiseJudge
    from rewardflow.reward.services.prices import Prices
    from rewardflow.reward.services.retrieval import RetrievalJudge
    from rewardflow.reward.services.reward_file import load_reward_file
    from rewardflow.reward.services.reward_model import RewardModel
    from rewardflow.reward.services.rubric import Criterion

_HOMES = {
    "Cascade": "hybrids",
    "Criterion": "rubric",
    "JsonScorer": "json_scorer",
    "LLMJudge": "judge",
    "ListwiseJudge": "listwise",
    "PairwiseJudge": "pairwise",
    "Prices": "prices",
    "RetrievalJudge": "retrieval",
    "RewardModel": "reward_model",
    "load_reward_file": "reward_file",
}

__all__ = [
    "Cascade",
    "Criterion",
    "JsonScorer",
    "LLMJudge",
    "ListwiseJudge",
    "PairwiseJudge",
    "Prices",
    "RetrievalJudge",
    "RewardModel",
    "load_reward_file",
    "rules",
]


def __getattr__(name: str) -> Any:
    if name == "rules":
        return importlib.import_module(f"{__name__}.rules")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
