"""Rules whose processes have started, for tests in real time: a new interpreter may take seconds on a busy machine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import rewardflow as rf
from rewardflow.reward.code.abandonment import Abandonment, in_call
from rewardflow.services.rules import Math, Regex

R = TypeVar("R", Regex, Math)


def warm(rule: R, rollout: rf.Rollout) -> R:
    """Judges the rollout in several processes at once, and returns the rule."""

    def judge(_number: int) -> None:
        with in_call(Abandonment()):
            rule.decide(rollout)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(judge, range(3)))
    return rule
