"""Rules for single settings, with errors that name the rule and the value, and hints for misspelt names."""

from __future__ import annotations

import dataclasses
import difflib
import math
import typing
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from rewardflow.errors import InvalidInput


def at_least(name: str, value: int, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidInput(f"{name} must be a whole number of at least {least}, got {name}={value!r}")


def check_seed(seed: int) -> None:
    """Refuses a seed that torch or JSON cannot hold."""
    at_least("seed", seed, 0)
    if seed >= 2**63:
        raise InvalidInput(f"seed must be below 2**63, got seed={seed}")


def within(
    name: str, value: float, low: float, high: float, *, low_open: bool = False, high_open: bool = False
) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not low <= value <= high or (low_open and value == low) or (high_open and value == high):
        start = "above" if low_open else "of at least"
        end = "" if high == math.inf else f" and {'below' if high_open else 'at most'} {high:g}"
        raise InvalidInput(f"{name} must be a number {start} {low:g}{end}, got {name}={value!r}")


def check_choices(record: Any) -> None:
    """Checks every field of a dataclass whose type lists its choices (`Literal`, or `Literal | None`)."""
    hints = typing.get_type_hints(type(record))
    for field in dataclasses.fields(record):
        choices = choices_of(hints[field.name])
        if choices:
            check_choice(field.name, getattr(record, field.name), choices)


def check_choice(name: str, value: object, choices: Sequence[Any]) -> None:
    if value not in choices:
        named = ", ".join("null" if choice is None else str(choice) for choice in choices)
        raise InvalidInput(f"{name} must be one of {named}, got {value!r}")


def choices_of(hint: Any) -> tuple[Any, ...]:
    """Returns the choices that a type lists; nothing if the type also takes other values."""
    if typing.get_origin(hint) is Literal:
        return typing.get_args(hint)
    alternatives = typing.get_args(hint)
    literals = [one for one in alternatives if typing.get_origin(one) is Literal]
    if not literals or len(literals) + (type(None) in alternatives) != len(alternatives):
        return ()
    nothing = (None,) if type(None) in alternatives else ()
    return (*(choice for one in literals for choice in typing.get_args(one)), *nothing)


def closest(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that `name` may be a misspelling of."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def did_you_mean(name: str, known: Iterable[str], *, otherwise: str) -> str:
    """Returns the end of an error about an unknown name: the closest known name, or `otherwise` if none is close."""
    found = closest(name, known)
    return otherwise if found is None else f"did you mean {found!r}?"
