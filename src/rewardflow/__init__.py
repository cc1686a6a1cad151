"""rewardflow: reinforcement learning of language models with slow, unreliable, paid rewards.

import rewardflow as rf

rewards = rf.score(rollouts, "judge.py:compute_score", max_concurrency=256, journal="run.db")

Always true: `import rewardflow` loads no other module of the package; a public name loads its module on first use.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    from rewardflow.reward.agent import RewardAgent
    from rewardflow.reward.agent_statistics import AgentStatistics
    from rewardflow.reward.blocking import score
    from rewardflow.reward.code.current_call import Call, current_call, report_headers, report_usage
    from rewardflow.reward.component import Weighted
    from rewardflow.reward.ticket import Ticket
    from rewardflow.types import FAILURE_KINDS, FailureKind, Reward, RewardList, Rollout, ScoredGroup

    __version__: str
else:  # hidden from type checkers: with a `__getattr__` they would accept any name
    # The imports above, once more, for the interpreter; tests/test_public_names.py compares the two.
    _MODULES = {
        "rewardflow.errors": (
            "AgentClosed",
            "AgentError",
            "AgentHalted",
            "BudgetExhausted",
            "CallError",
            "FlowError",
            "IncompleteGroup",
            "InvalidInput",
            "JournalError",
            "RateLimited",
            "RewardLoadError",
            "RewardflowError",
            "ServiceError",
            "ServiceOutage",
            "Unparsable",
        ),
        "rewardflow.flow.schedule": ("Schedule",),
        "rewardflow.reward.agent": ("RewardAgent",),
        "rewardflow.reward.agent_statistics": ("AgentStatistics",),
        "rewardflow.reward.blocking": ("score",),
        "rewardflow.reward.code.current_call": ("Call", "current_call", "report_headers", "report_usage"),
        "rewardflow.reward.component": ("Weighted",),
        "rewardflow.reward.ticket": ("Ticket",),
        "rewardflow.types": ("FAILURE_KINDS", "FailureKind", "Reward", "RewardList", "Rollout", "ScoredGroup"),
    }
    _MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

    def __getattr__(name):
        if name == "__version__":
            from rewardflow.observe.run_directory import own_version

            return own_version()
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
        return value

    def __dir__():
        return sorted({*__all__, "__version__", *(name for name in globals() if name.startswith("__"))})


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
    "RewardList",
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
