"""verl's rules for known data sets, with the sandbox that runs the code of responses.

Always true: at most `max_concurrent` requests to the sandbox run at once in a process, as in each of verl's own reward
workers. One sample makes a request for each of its test cases, so the agent's limit of calls cannot bound them.
"""

from __future__ import annotations

import threading
from functools import partial
from importlib import import_module
from typing import Any


class SandboxRules:
    """Takes the settings of `reward.sandbox_fusion`; `others` go to verl's function too."""

    def __init__(
        self, sandbox_fusion_url: str, memory_limit_mb: int = 1024, max_concurrent: int = 64, **others: Any
    ) -> None:
        self._score = partial(
            import_module("verl.utils.reward_score").default_compute_score,
            sandbox_fusion_url=sandbox_fusion_url,
            memory_limit_mb=memory_limit_mb,
            concurrent_semaphore=threading.Semaphore(max_concurrent),
            **others,
        )

    def compute_score(self, data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> Any:
        return self._score(
            data_source=data_source, solution_str=solution_str, ground_truth=ground_truth, extra_info=extra_info
        )
