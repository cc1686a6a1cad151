"""A row of a benchmark: a figure, its yardstick, and the ratio of the two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRow:
    name: str
    value: float
    unit: str
    yardstick: float | None = None
    yardstick_name: str = ""
    bar: str = ""  # the promise, such as "<= 1.05" or ">= 30,000"
    bar_on: Literal["value", "ratio"] = "value"

    @property
    def ratio(self) -> float | None:
        return None if not self.yardstick else self.value / self.yardstick

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "yardstick": self.yardstick,
            "yardstick_name": self.yardstick_name,
            "ratio": self.ratio,
            "bar": self.bar,
            "bar_on": self.bar_on,
        }
