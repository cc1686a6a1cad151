"""Bounds how large the numbers of an expression can become, without computing them.

Always true: `size_bound` is at least the number of bits of every whole number, numerator and denominator that
evaluating the expression exactly can make. It takes a number of steps linear in the expression, and never recurses.
"""

from __future__ import annotations

import math
from typing import Any

MAX_BITS = 400_000  # about 120,000 digits: sympy computes with such numbers in well under a second
_MAX_NODES = 20_000


def is_too_large(expression: Any) -> bool:
    """Whether evaluating a sympy expression may take numbers of more than `MAX_BITS`, or it has too many parts."""
    return size_bound(expression) > MAX_BITS


def size_bound(expression: Any) -> float:
    """Returns the number of bits; `math.inf` if they cannot be counted."""
    nodes = _parts_first(expression)
    if nodes is None:
        return math.inf
    bits: dict[int, float] = {}
    largest = 0.0
    for node, parts in nodes:
        bits[id(node)] = own = _bits(node, [bits[id(part)] for part in parts])
        largest = max(largest, own)
    return largest


def _parts_first(expression: Any) -> list[tuple[Any, tuple[Any, ...]]] | None:
    """Returns every part with its own parts, each after its parts; None if there are too many."""
    found: list[tuple[Any, tuple[Any, ...]]] = []
    waiting = [expression]
    while waiting:
        node = waiting.pop()
        parts = _parts(node)
        found.append((node, parts))
        if len(found) > _MAX_NODES:
            return None
        waiting.extend(parts)
    return found[::-1]


def _parts(node: Any) -> tuple[Any, ...]:
    parts = getattr(node, "args", ())
    return tuple(parts) if isinstance(parts, tuple | list) and not getattr(node, "is_Number", False) else ()


def _bits(node: Any, parts: list[float]) -> float:
    if getattr(node, "is_Number", False):
        return _number_bits(node)
    match type(node).__name__, parts:
        case "Pow", [base, _] if getattr(node.args[0], "is_Float", False):
            return base  # a power of a decimal number is one, with as many digits
        case "Pow", [base, exponent]:
            return max(base, 1.0) * _magnitude(node.args[1], exponent)
        case "factorial" | "factorial2" | "subfactorial" | "gamma", [argument]:
            return _magnitude(node.args[0], argument) * max(argument, 1.0)
    return max(sum(parts), 1.0) + len(parts)


def _number_bits(number: Any) -> float:
    numerator, denominator = getattr(number, "p", None), getattr(number, "q", None)
    if isinstance(numerator, int) and isinstance(denominator, int):
        return float(max(numerator.bit_length(), denominator.bit_length()))
    return 64.0  # a decimal number: sympy computes with a fixed number of digits


def _magnitude(node: Any, bits: float) -> float:
    """Returns a bound of the absolute value of an exponent."""
    value = getattr(node, "p", None)
    if isinstance(value, int) and getattr(node, "q", None) == 1:
        return float(min(abs(value), 1 << 60))
    if getattr(node, "is_Float", False):
        return min(abs(float(node)), math.exp2(60.0))
    return math.exp2(min(bits, 60.0))
