"""rewardflow: reinforcement learning of language models with slow, unreliable, paid rewards.

import rewardflow as rf

rewards = rf.score(rollouts, "judge.py:compute_score", max_concurrency=256, journal="run.db")
"""

from rewardflow.errors import (
    AgentClosed,
    AgentError,
    AgentHalted,
    BudgetExhausted,
    CallError,
    FlowError,
    IncompleteGroup,
    InvalidInput,
    JournalError,
    RateLimited,
    RewardflowError,
    RewardLoadError,
    ServiceError,
    ServiceOutage,
    Unparsable,
)
from rewardflow.flow.schedule import Schedule
from rewardflow.reward.agent import AgentStatistics, RewardAgent
from rewardflow.reward.blocking import score
from rewardflow.reward.code.current_call import Call, current_call, report_headers, report_usage
from rewardflow.reward.component import Weighted
from rewardflow.reward.ticket import Ticket
from rewardflow.types import FAILURE_KINDS, FailureKind, Reward, Rollout, ScoredGroup

__all__ = [
    "FAILURE_KINDS",
    "AgentClosed",
    "AgentError",
    "AgentHalted",
    "AgentStatistics",
    "BudgetExhausted",
    "Call",
    "CallError",
    "FailureKind",
    "FlowError",
    "IncompleteGroup",
    "InvalidInput",
    "JournalError",
    "RateLimited",
    "Reward",
    "RewardAgent",
    "RewardLoadError",
    "RewardflowError",
    "Rollout",
    "Schedule",
    "ScoredGroup",
    "ServiceError",
    "ServiceOutage",
    "Ticket",
    "Unparsable",
    "Weighted",
    "current_call",
    "report_headers",
    "report_usage",
    "score",
]
