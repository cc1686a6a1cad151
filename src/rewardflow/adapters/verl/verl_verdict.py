"""Converts verdicts to verl's form and back: a number with extra information, or an exception.

Always true: the extra information has the keys of `OWN_KEYS` for every sample, and in verl's v1 trainer every number of
the judge under its own name and its `ANSWER` as text; nothing that the judge returns beside the score can lose the
score; a failed verdict is raised, with the verdict inside, and is never a number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rewardflow.errors import RewardflowError
from rewardflow.observe.events import plain
from rewardflow.types import Reward

OWN_KEYS = ("score", "acc", "latency_s", "attempts", "cost_usd", "tokens", "cached", "imputed", "components", "extras")
ANSWER = "pred"  # the answer that a judge found in the response; verl's validation takes a vote on it (`maj@n`)


class VerdictFailed(RewardflowError):
    """A sample has no score; `reward` says why."""

    def __init__(self, reward: Reward) -> None:
        super().__init__(reward)
        self.reward = reward

    def __str__(self) -> str:
        return f"no verdict ({self.reward.kind}): {self.reward.error or 'no reason given'}"


def extra_info_of(reward: Reward, *, with_numbers: bool = True) -> dict[str, Any]:
    """Returns what verl keeps beside the score. All extras are also in one JSON text.

    `with_numbers` is False where verl takes the first sample's keys for all samples, and the judge's may differ.
    """
    extras = dict(reward.extras)
    return {
        **({**_numbers(extras), **_answer(extras)} if with_numbers else {}),
        "score": reward.value,
        "acc": accuracy_of(reward),  # as in verl's own managers; verl's validation reads it
        "latency_s": reward.latency_s,
        "attempts": reward.attempts,
        "cost_usd": reward.cost_usd,
        "tokens": reward.tokens,
        "cached": float(reward.cached),
        "imputed": float(reward.imputed),
        "components": _text(reward.components),
        "extras": _text(extras),
    }


def accuracy_of(reward: Reward) -> float | None:
    """Returns the judge's own `acc` if it is a number, otherwise the score."""
    accuracy = number_of(reward.extras.get("acc"))
    return reward.value if accuracy is None else accuracy


def reward_of(score: float, extra_info: Mapping[str, Any]) -> Reward:
    """Restores the verdict from what verl carries of it. Of the extras that are no numbers only the names come back."""
    names = json.loads(extra_info.get("extras") or "{}")
    return Reward(
        value=float(score),
        latency_s=float(extra_info.get("latency_s", 0.0)),
        attempts=int(extra_info.get("attempts", 0)),
        cost_usd=float(extra_info.get("cost_usd", 0.0)),
        tokens=int(extra_info.get("tokens", 0)),
        cached=bool(extra_info.get("cached", False)),
        imputed=bool(extra_info.get("imputed", False)),
        components=json.loads(extra_info.get("components") or "{}"),
        extras={name: number_of(value) for name, value in names.items()},
    )


def number_of(value: Any) -> float | None:
    """Returns a number or truth value as a float, and None for everything else, text among it."""
    try:
        return None if isinstance(value, str | bytes) else float(value)
    except Exception:  # no number, too large for a double, or raised by the value's own methods
        return None


def _numbers(extras: Mapping[str, Any]) -> dict[str, float]:
    found = {name: number_of(value) for name, value in extras.items() if name not in (*OWN_KEYS, ANSWER)}
    return {name: value for name, value in found.items() if value is not None}


def _answer(extras: Mapping[str, Any]) -> dict[str, str]:
    """Returns the answer as text, also if it is a number: verl would average the answers if the first were one."""
    answer = extras.get(ANSWER)
    if answer is None:
        return {}
    return {ANSWER: answer if isinstance(answer, str) else _json(answer)}


def _text(mapping: Mapping[str, Any]) -> str:
    return "{" + ",".join(f"{json.dumps(str(name))}:{_json(value)}" for name, value in mapping.items()) + "}"


def _json(value: Any) -> str:
    try:
        return json.dumps(plain(value), separators=(",", ":"))
    except Exception:  # a whole number of thousands of digits, or raised by the value's own methods
        return "null"
