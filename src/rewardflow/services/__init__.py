"""Ready-made rewards: judges, reward models, rules and cascades. Each follows the agent's contract for rewards.

Always true: importing this package loads none of its services. A service is imported on first use, so that a user of a
rule does not load an HTTP client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rewardflow.services import rules as rules
    from rewardflow.services.cascade import Cascade
    from rewardflow.services.escalation import Escalation
    from rewardflow.services.json_scorer import JsonScorer
    from rewardflow.services.judges.listwise import ListwiseJudge
    from rewardflow.services.judges.llm_judge import LLMJudge
    from rewardflow.services.judges.pairwise import PairwiseJudge
    from rewardflow.services.judges.rubric import Criterion
    from rewardflow.services.jury import Jury
    from rewardflow.services.prices import Prices
    from rewardflow.services.retrieval.retrieval_judge import RetrievalJudge
    from rewardflow.services.reward_file import load_reward_file
    from rewardflow.services.reward_model import RewardModel

_MODULES = {
    "Cascade": "cascade",
    "Criterion": "judges.rubric",
    "Escalation": "escalation",
    "JsonScorer": "json_scorer",
    "Jury": "jury",
    "LLMJudge": "judges.llm_judge",
    "ListwiseJudge": "judges.listwise",
    "PairwiseJudge": "judges.pairwise",
    "Prices": "prices",
    "RetrievalJudge": "retrieval.retrieval_judge",
    "RewardModel": "reward_model",
    "load_reward_file": "reward_file",
}

__all__ = [
    "Cascade",
    "Criterion",
    "Escalation",
    "JsonScorer",
    "Jury",
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
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
