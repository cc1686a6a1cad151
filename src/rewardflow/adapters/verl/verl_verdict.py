"""Converts verdicts to verl's form and back: a number with extra information, or an exception.

Always true: the extra information has the same keys for every sample, because verl uses the first sample's keys for
all; a failed verdict is raised, with the verdict inside, and is never a number.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rewardflow.errors import RewardflowError
from rewardflow.observe.events import plain
from rewardflow.types import Reward

OWN_KEYS = ("score", "acc", "latency_s", "attempts", "cost_usd", "tokens", "cached", "imputed", "components", "extras")


class VerdictFailed(RewardflowError):
    """A sample has no score; `reward` says why."""

    def __init__(self, reward: Reward) -> None:
        super().__init__(reward)
        self.reward = reward

    def __str__(self) -> str:
        return f"no verdict ({self.reward.kind}): {self.reward.error or 'no reason given'}"


def extra_info_of(reward: Reward, extra_keys: Sequence[str] = ()) -> dict[str, Any]:
    """Returns what verl keeps beside the score. Extras without a key in `extra_keys` go into one JSON text."""
    extras = dict(reward.extras)
    accuracy = _number(extras.get("acc", reward.value))  # as in verl's own managers; verl's validation reads it
    named = {key: _number(extras.pop(key, None)) for key in extra_keys}
    return {
        "score": reward.value,
        "acc": accuracy,
        "latency_s": reward.latency_s,
        "attempts": reward.attempts,
        "cost_usd": reward.cost_usd,
        "tokens": reward.tokens,
        "cached": float(reward.cached),
        "imputed": float(reward.imputed),
        "components": _text(reward.components),
        "extras": _text(extras),
        **named,
    }


def reward_of(score: float, extra_info: Mapping[str, Any]) -> Reward:
    """Restores the verdict from what verl carries of it."""
    return Reward(
        value=float(score),
        latency_s=float(extra_info.get("latency_s", 0.0)),
        attempts=int(extra_info.get("attempts", 0)),
        cost_usd=float(extra_info.get("cost_usd", 0.0)),
        tokens=int(extra_info.get("tokens", 0)),
        cached=bool(extra_info.get("cached", False)),
        imputed=bool(extra_info.get("imputed", False)),
        components=json.loads(extra_info.get("components") or "{}"),
    )


def _number(value: Any) -> float:
    """Returns NaN for what is not a number: verl averages these values, and a 0 would count."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _text(mapping: Mapping[str, Any]) -> str:
    return json.dumps(plain(mapping), separators=(",", ":"))
