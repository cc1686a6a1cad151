"""How large numbers become is known before they are computed."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardflow.services.rules.number_size import MAX_BITS, is_too_large, size_bound

Tree = int | tuple[str, Any, Any]
trees: st.SearchStrategy[Tree] = st.recursive(
    st.integers(-9, 9),
    lambda parts: st.tuples(st.sampled_from(["add", "mul", "pow", "div"]), parts, parts),
    max_leaves=6,
)


def expression(tree: Tree) -> Any:
    """The expression as math-verify parses it: nothing is evaluated."""
    if isinstance(tree, int):
        return sympy.Integer(tree)
    operation, left, right = tree[0], expression(tree[1]), expression(tree[2])
    match operation:
        case "add":
            return sympy.Add(left, right, evaluate=False)
        case "mul":
            return sympy.Mul(left, right, evaluate=False)
        case "pow":
            return sympy.Pow(left, right, evaluate=False)
    return sympy.Mul(left, sympy.Pow(right, -1, evaluate=False), evaluate=False)


def value(tree: Tree) -> Fraction:
    """The exact value; ValueError where it is none or too large for a test."""
    if isinstance(tree, int):
        return Fraction(tree)
    left, right = value(tree[1]), value(tree[2])
    match tree[0]:
        case "add":
            return left + right
        case "mul":
            return left * right
        case "div" if right:
            return left / right
        case "pow" if right.denominator == 1 and abs(right) < 2000 and (left or right >= 0):
            return left ** int(right)
    raise ValueError("not a number")


@given(trees)
@settings(max_examples=300, deadline=None)
def test_no_number_is_larger_than_its_bound(tree: Tree) -> None:
    try:
        exact = value(tree)
    except ValueError:
        return
    bits = max(exact.numerator.bit_length(), exact.denominator.bit_length())
    assert bits <= size_bound(expression(tree))


def test_a_power_at_the_limit_is_computed_and_one_above_is_not() -> None:
    assert not is_too_large(sympy.Pow(2, MAX_BITS // 2, evaluate=False))
    assert is_too_large(sympy.Pow(2, MAX_BITS, evaluate=False))


@pytest.mark.parametrize("depth", [900, 5_000, 15_000])
def test_a_deep_expression_is_measured_without_recursion(depth: int) -> None:
    x = sympy.Symbol("x")
    deep = x
    for _ in range(depth):
        deep = sympy.Basic.__new__(sympy.Add, deep, x)
    assert size_bound(deep) > depth
    assert is_too_large(sympy.Basic.__new__(sympy.Tuple, *[x] * 30_000))


@pytest.mark.parametrize("exponent", ["1.5", "-2.5", "0.5", "-0.05"])
def test_a_decimal_exponent_is_as_large_as_it_is(exponent: str) -> None:
    for base in (sympy.Integer(10), sympy.Symbol("x"), sympy.Float("0.3")):
        assert not is_too_large(sympy.Pow(base, sympy.Float(exponent), evaluate=False))


def test_a_power_of_a_decimal_number_has_as_many_digits_but_a_large_decimal_exponent_is_still_too_large() -> None:
    assert not is_too_large(sympy.Pow(sympy.Float("1.0001"), sympy.Integer(10_000_000), evaluate=False))
    assert is_too_large(sympy.Pow(sympy.Integer(9), sympy.Float("9999999"), evaluate=False))
    assert is_too_large(sympy.Pow(sympy.Integer(9), sympy.Float("1e400"), evaluate=False))
    tower = sympy.Pow(sympy.Float("0.5"), sympy.Integer(-30), evaluate=False)
    assert is_too_large(sympy.Pow(sympy.Integer(9), tower, evaluate=False))


x, t = sympy.symbols("x t")


def power(base: Any, exponent: Any) -> Any:
    return sympy.Pow(base, exponent, evaluate=False)


def product(*factors: Any) -> Any:
    return sympy.Mul(*factors, evaluate=False)


def decimal(text: str) -> Any:
    return sympy.Float(text)


@pytest.mark.parametrize(
    "huge",
    [
        power(decimal("9.0"), power(9, 9)),
        power(decimal("9.0"), power(9, 999)),
        power(decimal("0.1"), power(10, 9)),
        power(decimal("9.5"), decimal("1000000.5")),
        sympy.exp(sympy.Integer(1_000_000), evaluate=False),
        sympy.sinh(power(10, 9), evaluate=False),
        decimal("1.6e200000"),
    ],
)
def test_a_decimal_number_with_many_digits_before_or_behind_the_point_is_too_large(huge: Any) -> None:
    assert is_too_large(huge)


@pytest.mark.parametrize(
    "formula",
    [
        power(2, product(decimal("0.1"), t)),
        product(100, sympy.exp(product(decimal("-0.05"), t), evaluate=False)),
        sympy.exp(sympy.Add(product(decimal("2.5"), x), decimal("1.25"), evaluate=False), evaluate=False),
        sympy.exp(sympy.exp(x)),
        power(decimal("1.05"), 1000),
        power(decimal("0.0"), 2),
        power(decimal("1.0"), power(10, 15)),
        decimal("1.6e-300"),
    ],
)
def test_formulas_of_growth_and_decay_are_computed(formula: Any) -> None:
    assert not is_too_large(formula)
