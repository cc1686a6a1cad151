"""Bounds how large the numbers of an expression can become, without computing them.

Always true: `size_bound` is at least the number of bits of every whole number, numerator and denominator that
evaluating the expression exactly can make, and of what a decimal number in it has before or behind the point. It takes
a number of steps linear in the expression, and never recurses.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

MAX_BITS = 400_000  # about 120,000 digits: sympy computes with such numbers in well under a second
_MAX_NODES = 20_000
_DECIMAL_BITS = 64.0  # a decimal number: sympy computes with a fixed number of digits
_MOST = math.exp2(60.0)  # absurdly large, and still a number to compute with


class _Size(NamedTuple):
    bits: float
    most: float  # no less than the absolute value; a variable counts as 2

    @classmethod
    def of_bits(cls, bits: float) -> _Size:
        return cls(bits, math.exp2(min(bits, 60.0)))


def is_too_large(expression: Any) -> bool:
    """Whether evaluating a sympy expression may take numbers of more than `MAX_BITS`, or it has too many parts."""
    return size_bound(expression) > MAX_BITS


def size_bound(expression: Any) -> float:
    """Returns the number of bits; `math.inf` if they cannot be counted."""
    nodes = _parts_first(expression)
    if nodes is None:
        return math.inf
    sizes: dict[int, _Size] = {}
    largest = 0.0
    for node, parts in nodes:
        sizes[id(node)] = own = _size(node, [sizes[id(part)] for part in parts])
        largest = max(largest, own.bits)
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


def _size(node: Any, parts: list[_Size]) -> _Size:
    if getattr(node, "is_Number", False):
        return _number_size(node)
    match type(node).__name__, parts:
        case "Pow", [_, exponent] if getattr(node.args[0], "is_Float", False):
            return _decimal_size(_doublings(node.args[0]) * exponent.most)
        case "exp" | "sinh" | "cosh", [argument]:
            return _decimal_size(argument.most / math.log(2.0))
        case "Pow", [base, exponent]:
            return _Size.of_bits(max(base.bits, 1.0) * exponent.most)
        case "factorial" | "factorial2" | "subfactorial" | "gamma", [argument]:
            return _Size.of_bits(argument.most * max(argument.bits, 1.0))
        case name, _:
            bits = max(sum(part.bits for part in parts), 1.0) + len(parts)
            if name == "Mul":
                return _Size(bits, min(math.prod(part.most for part in parts), _MOST))
            if name == "Add":
                return _Size(bits, min(sum(part.most for part in parts), _MOST))
            return _Size.of_bits(bits)


def _decimal_size(doublings: float) -> _Size:
    """Has few digits. But two decimal numbers are compared by all that stand before or behind the point."""
    return _Size(_DECIMAL_BITS + doublings, math.exp2(min(doublings, 60.0)))


def _number_size(number: Any) -> _Size:
    if getattr(number, "is_Float", False):
        doublings = _doublings(number)
        return _Size(_DECIMAL_BITS + doublings, _MOST if doublings > 60.0 else abs(float(number)))
    numerator, denominator = getattr(number, "p", None), getattr(number, "q", None)
    if isinstance(numerator, int) and isinstance(denominator, int):
        bits = float(max(numerator.bit_length(), denominator.bit_length()))
        return _Size(bits, float(min(-(-abs(numerator) // denominator), 1 << 60)))
    return _Size(_DECIMAL_BITS, _MOST)


def _doublings(number: Any) -> float:
    """Returns how many times 1 is doubled, or halved, to come to the absolute value of a decimal number."""
    _, mantissa, exponent, _ = number._mpf_
    return abs(math.log2(mantissa) + exponent) if mantissa else 0.0
