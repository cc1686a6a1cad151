"""A rubric lists the criteria that a judge scores, with scales and weights, and fixes the shape of a verdict.

Always true: the names of a rubric are distinct and plain, each scale has a lower and a higher end, and the weights add
up to more than 0. A verdict is a flat JSON object with a reason and one number per criterion; the reason comes first,
so that the model writes it before the numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from rewardflow.errors import InvalidInput
from rewardflow.reward.settings import check_names

REASON = "reason"

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")  # accepted by every server's grammar, without escapes in JSON
_MAX_LISTED = 21  # longer scales are given by minimum and maximum


@dataclass(frozen=True, slots=True)
class Criterion:
    """One criterion, scored from `low` (worst) to `high` (best). If both are whole numbers, so is every score."""

    name: str
    description: str = ""
    low: float = 0
    high: float = 10
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name) or self.name == REASON:
            raise InvalidInput(
                f"a criterion's name must be letters, digits and _, begin with a letter and not be {REASON!r}, "
                f"got {self.name!r}"
            )
        for name in ("low", "high", "weight"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise InvalidInput(f"{name} of criterion {self.name!r} must be a finite number, got {value!r}")
        if self.low >= self.high:
            raise InvalidInput(f"low must be below high in criterion {self.name!r}, got {self.low!r} and {self.high!r}")
        if self.weight < 0:
            raise InvalidInput(f"weight of criterion {self.name!r} must be at least 0, got {self.weight!r}")

    @classmethod
    def of(cls, criterion: Criterion | Mapping[str, Any] | str) -> Criterion:
        """Accepts a criterion, the name of one, or a mapping as in a reward file."""
        if isinstance(criterion, Criterion):
            return criterion
        if isinstance(criterion, str):
            return cls(criterion)
        if not isinstance(criterion, Mapping) or "name" not in criterion:
            raise InvalidInput(f"a criterion must be a mapping with a name, got {criterion!r:.200}")
        check_names(criterion, [field.name for field in fields(cls)])
        return cls(**criterion)

    @property
    def is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def normalised(self, score: float) -> float:
        """Scales a score to 0 to 1."""
        return (score - self.low) / (self.high - self.low)

    def schema(self) -> dict[str, Any]:
        if not self.is_whole:
            return {"type": "number", "minimum": self.low, "maximum": self.high}
        if self.high - self.low < _MAX_LISTED:  # more servers understand enum than minimum and maximum
            return {"type": "integer", "enum": list(range(int(self.low), int(self.high) + 1))}
        return {"type": "integer", "minimum": self.low, "maximum": self.high}

    def in_words(self) -> str:
        kind = "a whole number" if self.is_whole else "a number"
        about = f": {self.description}" if self.description else ""
        return f"- {self.name} ({kind} from {self.low} = worst to {self.high} = best){about}"


@dataclass(frozen=True)
class Rubric:
    """The criteria of one judge."""

    criteria: tuple[Criterion, ...]

    def __post_init__(self) -> None:
        names = [criterion.name for criterion in self.criteria]
        if not names or len(set(names)) != len(names):
            raise InvalidInput(f"a rubric must have criteria with distinct names, got {names}")
        if sum(criterion.weight for criterion in self.criteria) <= 0:
            raise InvalidInput(f"the weights of a rubric must add up to more than 0, got none above 0 in {names}")

    @classmethod
    def of(cls, criteria: Iterable[Criterion | Mapping[str, Any] | str]) -> Rubric:
        if isinstance(criteria, str | Mapping) or not isinstance(criteria, Iterable):
            raise InvalidInput(f"criteria must be a list, got {criteria!r:.200}")
        return cls(tuple(Criterion.of(criterion) for criterion in criteria))

    @cached_property
    def keys(self) -> tuple[str, ...]:
        return (REASON, *(criterion.name for criterion in self.criteria))

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of a verdict in the strict dialect: it requires every property and allows no other."""
        properties: dict[str, Any] = {REASON: {"type": "string"}}
        properties.update({criterion.name: criterion.schema() for criterion in self.criteria})
        return {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }

    @cached_property
    def in_words(self) -> str:
        """Describes the criteria and the format of a verdict, for the system prompt."""
        lines = [criterion.in_words() for criterion in self.criteria]
        example = ", ".join(f'"{name}": <number>' for name in self.keys[1:])
        return (
            "Criteria:\n"
            + "\n".join(lines)
            + f'\n\nReply with one JSON object and nothing else: {{"{REASON}": "<one or two sentences>", {example}}}'
        )

    def read(self, found: Mapping[str, Any]) -> JudgeVerdict | None:
        """Returns the verdict in a JSON object, or None if the object does not have exactly the right shape."""
        if len(found) != len(self.criteria) + 1 or not isinstance(found.get(REASON), str):
            return None
        scores: dict[str, float] = {}
        for criterion in self.criteria:
            score = number_of(found.get(criterion.name))
            if score is None or not criterion.low <= score <= criterion.high:
                return None
            if criterion.is_whole and not score.is_integer():
                return None
            scores[criterion.name] = score
        return JudgeVerdict(reason=found[REASON], scores=scores)

    def normalised(self, scores: Mapping[str, float]) -> dict[str, float]:
        """Scales each criterion's score to 0 to 1."""
        return {criterion.name: criterion.normalised(scores[criterion.name]) for criterion in self.criteria}

    def value(self, normalised: Mapping[str, float]) -> float:
        """Returns the weighted mean of scores that are already on 0 to 1."""
        total = sum(criterion.weight for criterion in self.criteria)
        return sum(criterion.weight * normalised[criterion.name] for criterion in self.criteria) / total


@dataclass(frozen=True, slots=True)
class JudgeVerdict:
    """A judge's reason and scores, on the rubric's own scales."""

    reason: str
    scores: Mapping[str, float]

    def agrees_with(self, other: JudgeVerdict) -> bool:
        """Whether both give the same scores; the reasons may differ."""
        return self.scores == other.scores


def number_of(value: Any) -> float | None:
    """Reads a finite number, also from text, because models without a schema write numbers as text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and not re.fullmatch(r"\s*[-+]?\d{1,18}(\.\d{1,18})?\s*", value, re.ASCII):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer too large for a float
        return None
    return number if math.isfinite(number) else None


def default_criteria() -> Sequence[Criterion]:
    return (Criterion("correctness", "is the answer right, judged by the reference answer where there is one?"),)
