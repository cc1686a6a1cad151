"""The rules that numbers among the settings obey, with errors that say the rule and the value."""

from __future__ import annotations

import dataclasses
import math
import typing
from typing import Any, Literal

from rewardflow.errors import InvalidInput


def at_least(name: str, value: int, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidInput(f"{name} must be a whole number of at least {least}, got {name}={value!r}")


def check_seed(seed: int) -> None:
    """What torch and JSON can hold."""
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
    """Every field of a dataclass that names its choices (`Literal`, or `Literal | None`) must hold one of them."""
    hints = typing.get_type_hints(type(record))
    for field in dataclasses.fields(record):
        choices = choices_of(hints[field.name])
        value = getattr(record, field.name)
        if choices and value not in choices:
            named = ", ".join("null" if choice is None else str(choice) for choice in choices)
            raise InvalidInput(f"{field.name} must be one of {named}, got {value!r}")


def choices_of(hint: Any) -> tuple[Any, ...]:
    """None of a type that takes more than its literals."""
    if typing.get_origin(hint) is Literal:
        return typing.get_args(hint)
    alternatives = typing.get_args(hint)
    literals = [one for one in alternatives if typing.get_origin(one) is Literal]
    if not literals or len(literals) + (type(None) in alternatives) != len(alternatives):
        return ()
    nothing = (None,) if type(None) in alternatives else ()
    return (*(choice for one in literals for choice in typing.get_args(one)), *nothing)
