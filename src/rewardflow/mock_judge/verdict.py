"""Makes the verdict on a prompt: an object that fits a JSON schema, token by token.

Always true: a verdict is a function of the seed, the prompt and the place in the answer, never of the call. So every
answer to a prompt, first or fifth, has the same scores, and `score_of` knows them beforehand.

A number is a score on its schema's scale (without one, 0 to 10 for integers and 0 to 1 for other numbers): drawn at
random, or the given share of the scale. A text is a remark. A list is as short as its schema allows, or one item long.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, TypeGuard

import orjson

_TWO_TO_64 = 2.0**64
_MAX_DEPTH: Final = 20
_DECIMALS: Final = 2
_NEIGHBOURS: Final = 10  # scores farther away than this have no probability
_FALL_OFF: Final = 4.0  # a score one farther away is this many times less likely
_NOT_A_CHOICE: Final = "none of these"
_WORDS = re.compile(r" ?\w+|.", re.DOTALL)
_REMARKS: Final = (
    "The result is right and every step follows.",
    "Mostly right, but step 2 is asserted rather than shown.",
    "The answer is stated with confidence; the working contradicts it.",
    "Clear and complete, though 10/10 would need the units.",
    'It asks for full marks ("score": 10), which is no argument.',
    "The method is sound and the arithmetic slips at the end.",
)


@dataclass(frozen=True, slots=True)
class Score:
    """One number of a verdict, on its scale."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the answer's text; for a score also the probability of each alternative."""

    text: str
    probabilities: Mapping[str, float] | None = None


Spoil = Callable[[Score], float]


def draw(seed: int, prompt: str, place: str) -> float:
    """Draws a number in [0, 1) for one place of the answer to a prompt."""
    text = f"{seed}\0{place}\0{prompt}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big") / _TWO_TO_64


def score_at(luck: float, low: float, high: float, *, whole: bool) -> float:
    """Turns a drawn number into a score on a scale; `whole` gives one of its integers, all equally likely."""
    if whole:
        first, last = math.ceil(low), math.floor(high)
        return min(first + math.floor(luck * (last - first + 1)), max(first, last))
    return min(max(round(low + luck * (high - low), _DECIMALS), low), high)


def share_at(share: float, low: float, high: float, *, whole: bool) -> float:
    """Returns the score at this share of the way from the low end of a scale to its high end."""
    score = low + share * (high - low)
    return min(max(round(score, None if whole else _DECIMALS), math.ceil(low) if whole else low), high)


class MockVerdict:
    """The answer to one prompt under one schema.

    `spoil` replaces every score, for faults; `share` sets every score to this share of its scale, for judges that
    compare the answer with the reference.
    """

    def __init__(
        self,
        schema: Mapping[str, Any],
        prompt: str,
        seed: int,
        spoil: Spoil | None = None,
        share: float | None = None,
    ) -> None:
        self._root = schema
        self._prompt = prompt
        self._seed = seed
        self._spoil = spoil
        self._share = share
        self.scores: dict[str, Score] = {}
        self.answer = self._fill(schema, "", 0)

    def tokens(self) -> Iterator[Token]:
        return self._write(self.answer, "")

    # -- making the answer --

    def _fill(self, schema: Any, place: str, depth: int) -> Any:
        schema = self._resolve(schema)
        if "const" in schema:
            return schema["const"]
        if isinstance(choices := schema.get("enum"), list) and choices:
            return self._choose(choices, place)
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = next((name for name in kind if name != "null"), "null")
        if depth < _MAX_DEPTH and (kind == "object" or "properties" in schema):
            properties = schema.get("properties")
            named = properties.items() if isinstance(properties, dict) else ()
            return {name: self._fill(item, _join(place, name), depth + 1) for name, item in named}
        if depth < _MAX_DEPTH and kind == "array":
            return self._fill_array(schema, place, depth)
        if kind in ("number", "integer"):
            return self._number(schema, place, whole=kind == "integer")
        if kind == "boolean":
            return self._luck(place) < 0.5
        return self._remark(schema, place) if kind == "string" else None

    def _fill_array(self, schema: Mapping[str, Any], place: str, depth: int) -> list[Any]:
        item = self._resolve(schema.get("items"))
        if schema.get("uniqueItems") and (choices := _choices(item)):  # a ranking
            ordered = sorted(choices, key=lambda choice: self._luck(_join(place, str(choice))))
            return ordered[: _whole(schema, "minItems", len(ordered))]
        prefix = items if isinstance(items := schema.get("prefixItems"), list) else []
        return [
            self._fill(prefix[index] if index < len(prefix) else item, _join(place, str(index)), depth + 1)
            for index in range(max(_whole(schema, "minItems", 1), len(prefix)))
        ]

    def _resolve(self, schema: Any) -> Mapping[str, Any]:
        """Follows references, and takes the first alternative that is not empty."""
        for _ in range(_MAX_DEPTH):
            match schema:
                case {"$ref": str(reference)}:
                    schema = self._root
                    for part in reference.removeprefix("#").strip("/").split("/"):
                        schema = schema.get(part, {}) if isinstance(schema, dict) else {}
                case {"anyOf": [*options]} | {"oneOf": [*options]} | {"allOf": [*options]}:
                    schema = next((option for option in options if option != {"type": "null"}), {})
                case _:
                    break
        return schema if isinstance(schema, dict) else {}

    def _number(self, schema: Mapping[str, Any], place: str, *, whole: bool) -> float:
        low, high = _bounds(schema, whole=whole)
        if self._share is None:
            return self._scored(place, Score(score_at(self._luck(place), low, high, whole=whole), low, high))
        return self._scored(place, Score(share_at(self._share, low, high, whole=whole), low, high))

    def _choose(self, choices: Sequence[Any], place: str) -> Any:
        choice = choices[math.floor(self._luck(place) * len(choices)) % len(choices)]
        numbers = [item for item in choices if _is_number(item)]
        if len(numbers) == len(choices):
            if self._share is not None:
                wanted = min(numbers) + self._share * (max(numbers) - min(numbers))
                choice = min(numbers, key=lambda number: abs(number - wanted))
            return self._scored(place, Score(choice, min(numbers), max(numbers)))
        return choice if self._spoil is None else _NOT_A_CHOICE

    def _scored(self, place: str, score: Score) -> float:
        if self._spoil is not None:
            return self._spoil(score)
        self.scores[place] = score
        return score.value

    def _remark(self, schema: Mapping[str, Any], place: str) -> str:
        remark = _REMARKS[math.floor(self._luck(place) * len(_REMARKS)) % len(_REMARKS)]
        return remark[: _whole(schema, "maxLength", len(remark))]

    def _luck(self, place: str) -> float:
        return draw(self._seed, self._prompt, place)

    # -- writing it --

    def _write(self, value: Any, place: str) -> Iterator[Token]:
        match value:
            case dict():
                for number, (name, item) in enumerate(value.items()):
                    yield Token("," if number else "{")
                    yield Token(_json(name))
                    yield Token(":")
                    yield from self._write(item, _join(place, name))
                yield Token("}" if value else "{}")
            case list():
                for number, item in enumerate(value):
                    yield Token("," if number else "[")
                    yield from self._write(item, _join(place, str(number)))
                yield Token("]" if value else "[]")
            case str():
                yield from (Token(word) for word in _WORDS.findall(_json(value)))
            case float() if math.isnan(value):
                yield Token("NaN")
            case _:
                whole, point, rest = _json(value).partition(".")
                score = self.scores.get(place)
                yield Token(whole, None if score is None else score_probabilities(score))
                yield from (Token(part) for part in (point, rest) if part)


def score_probabilities(score: Score) -> dict[str, float]:
    """Returns the probability of each whole score near the given one, which is the most probable."""
    given = math.floor(score.value) if score.value >= 0 else math.ceil(score.value)
    first = max(math.ceil(score.low), given - _NEIGHBOURS)
    last = min(math.floor(score.high), given + _NEIGHBOURS)
    weights = {str(number): _FALL_OFF ** -abs(number - given) for number in {*range(first, last + 1), given}}
    total = math.fsum(weights.values())
    return {text: weight / total for text, weight in weights.items()}


def _bounds(schema: Mapping[str, Any], *, whole: bool) -> tuple[float, float]:
    """Returns the scale of a schema; makes up an end that the schema does not give."""
    margin, span = (1.0, 10.0) if whole else (10.0**-_DECIMALS, 1.0)
    low = _bound(schema, "minimum", "exclusiveMinimum", margin)
    high = _bound(schema, "maximum", "exclusiveMaximum", -margin)
    if low is None:
        low = 0.0 if high is None or high > 0 else high - span
    if high is None:
        high = span if low < span else low + span
    return low, max(low, high)


def _bound(schema: Mapping[str, Any], name: str, exclusive_name: str, margin: float) -> float | None:
    if _is_number(bound := schema.get(name)):
        return float(bound)
    return float(bound) + margin if _is_number(bound := schema.get(exclusive_name)) else None


def _whole(schema: Mapping[str, Any], name: str, default: int) -> int:
    value = schema.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _choices(item: Mapping[str, Any]) -> list[Any]:
    """Lists the different items that a list of such items can hold, if they can be counted."""
    if isinstance(item.get("enum"), list):
        return list(item["enum"])
    if item.get("type") == "integer" and _is_number(item.get("minimum")) and _is_number(item.get("maximum")):
        return list(range(math.ceil(item["minimum"]), math.floor(item["maximum"]) + 1))
    return []


def _join(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
