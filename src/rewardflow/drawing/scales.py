"""Turns figures into coordinates and text: axes with round numbers, quantities as people write them.

Always true: ticks are within their range; every finite figure has a text of a few characters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_SMALLEST_SPAN = 1e-300  # below, quotients have few digits left, or none


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps `low` to `start`, `high` to `end`, and the figures between them linearly."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low
        share = (value - self.low) / span if span else 0.5
        return self.start + share * (self.end - self.start)


@dataclass(frozen=True, slots=True)
class LogScale:
    """A logarithmic scale, for positive figures of very different size."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        inner = Scale(math.log(self.low), math.log(self.high), self.start, self.end)
        return inner(math.log(max(value, self.low)))


def powers_of_ten(low: float, high: float) -> list[float]:
    """Returns the powers of ten from low to high, both positive; every second one or fewer if there are many."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    return [10.0**power for power in range(first, last + 1, max(0, last - first) // 5 + 1)]


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Returns about `count` round numbers from low to high."""
    span = high - low
    if not math.isfinite(span) or span < max(_SMALLEST_SPAN, 1e-12 * max(abs(low), abs(high))):
        return [low]
    rough = span / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [float(f"{index * step:.12g}") for index in range(first, last + 1)] or [low]


def padded(low: float, high: float) -> tuple[float, float]:
    """Widens the range a little, and gives it a width even if all figures are the same."""
    air = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return low - air, high + air


def figure(value: float | None, unit: str = "") -> str:
    """Writes a figure as `12.3 s`, `$0.42`, `38 %` or `1,024`, and an unknown one as a dash."""
    if value is None or not math.isfinite(value):
        return "–"  # noqa: RUF001  a dash
    match unit:
        case "s":
            return seconds(value)
        case "$":
            return dollars(value)
        case "%":
            return _percent(value)
        case _:
            return f"{_digits(value)} {unit}".rstrip()


def _percent(value: float) -> str:
    if 0 < abs(value) < 0.0001:
        return "< 0.01 %" if value > 0 else "> -0.01 %"
    return f"{100 * value:.3g} %" if abs(value) < 0.995 else f"{100 * value:.0f} %"


def seconds(value: float) -> str:
    magnitude = abs(value)
    if magnitude < 0.0005:
        return "0 s" if magnitude == 0 else f"{value * 1e6:.0f} µs"
    if magnitude < 0.9995:
        return f"{value * 1e3:.3g} ms"
    if magnitude < 99.95:
        return f"{value:.3g} s"
    if magnitude < 5990:
        minutes, rest = divmod(round(magnitude), 60)
        return f"{'-' if value < 0 else ''}{minutes} min {rest:02d} s"
    hours, rest = divmod(round(magnitude / 60), 60)
    return f"{'-' if value < 0 else ''}{hours:,} h {rest:02d} min"


def dollars(value: float) -> str:
    sign, value = "-" if value < 0 else "", abs(value)
    if value >= 1000:
        return f"{sign}${value:,.0f}"
    return f"{sign}${value:.2f}" if value >= 1 or value == 0 else f"{sign}${value:.3g}"


def _digits(value: float) -> str:
    if value == 0:
        return "0"
    magnitude = abs(value)
    if magnitude >= 1e15 or magnitude < 1e-4:
        return f"{value:.3g}"
    if magnitude >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.4g}" if value == int(value) else f"{value:.3g}"
