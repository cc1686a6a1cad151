"""The names that reward files and run files use for the shipped rewards.

Always true: importing this table imports no reward.
"""

from __future__ import annotations

from collections.abc import Mapping

_SERVICES = "rewardflow.services"

KINDS: Mapping[str, str] = {
    "llm_judge": f"{_SERVICES}:LLMJudge",
    "retrieval_judge": f"{_SERVICES}:RetrievalJudge",
    "listwise_judge": f"{_SERVICES}:ListwiseJudge",
    "pairwise_judge": f"{_SERVICES}:PairwiseJudge",
    "reward_model": f"{_SERVICES}:RewardModel",
    "json_scorer": f"{_SERVICES}:JsonScorer",
    "gsm8k": f"{_SERVICES}.rules:GSM8K",
    "math": f"{_SERVICES}.rules:Math",
    "regex": f"{_SERVICES}.rules:Regex",
    "format": f"{_SERVICES}.rules:Format",
    "length": f"{_SERVICES}.rules:Length",
    "cascade": f"{_SERVICES}:Cascade",
    "jury": f"{_SERVICES}:Jury",
    "escalation": f"{_SERVICES}:Escalation",
}
"""Maps a kind to its class, written as `package.module:Name`."""
