"""Summarises learning runs: how many reached the target, how soon, and how that compares with the synchronous runs.

Always true: a run that did not reach the target took infinitely long, so it moves medians and worst cases and is never
left out; runs are compared with the synchronous run of the same task and seed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from rewardflow.bench.benchmark_row import BenchmarkRow

STEPS_BAR = "<= 1.10"


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningFigures:
    """The results of one run."""

    task: str
    schedule: str
    correction: str
    engine: str = "float32"  # the dtype that the engine rounds its weights to
    seed: int
    steps: int
    exact: float  # share of the last sampled answers that were completely right
    final_reward: float
    seconds: float
    reached_step: int | None  # when the target was reached; None: never
    reached_s: float | None

    @property
    def label(self) -> str:
        """Names what the run differs in from others of its task, besides the seed."""
        rounded = "" if self.engine == "float32" else f", engine in {self.engine}"
        return f"{self.schedule}, {self.correction}{rounded}"

    def under(self, schedule: str, step_s: float) -> LearningFigures:
        """Returns the same run under another schedule of the same staleness, a step of which takes `step_s`."""
        reached_s = None if self.reached_step is None else self.reached_step * step_s
        return replace(self, schedule=schedule, reached_s=reached_s)


def summary_rows(figures: Sequence[LearningFigures], *, baseline: str) -> Iterator[BenchmarkRow]:
    """Yields the rows of each task and label. Compares with the label that comes first of the schedule `baseline`."""
    by_kind: defaultdict[tuple[str, str], list[LearningFigures]] = defaultdict(list)
    for one in figures:
        by_kind[one.task, one.label].append(one)
    first = next((one.label for one in figures if one.schedule == baseline), "")
    baselines = {(one.task, one.seed): one for one in figures if one.label == first}
    for (task, label), runs in by_kind.items():
        compared = [baselines[one.task, one.seed] for one in runs if (one.task, one.seed) in baselines]
        pairs = compared if label != first and len(compared) == len(runs) else ()
        yield from _rows_of_kind(f"{task}, {label}", runs, pairs)


def _rows_of_kind(
    name: str, runs: Sequence[LearningFigures], pairs: Sequence[LearningFigures]
) -> Iterator[BenchmarkRow]:
    """`pairs` has the synchronous run for each of the runs, in their order, or nothing."""

    def row(what: str, value: float, *, unit: str = "", bar: str = "") -> BenchmarkRow:
        return BenchmarkRow(name=f"{name}: {what}", value=value, unit=unit, bar=bar)

    at_most = f"<= {_num_missed(pairs) + 1}" if pairs else ""
    yield row(f"missed the target, of {len(runs)} runs", _num_missed(runs), bar=at_most)
    steps, seconds = [_steps(one) for one in runs], [_seconds(one) for one in runs]
    if pairs:
        step_ratios = [_ratio(own, _steps(other)) for own, other in zip(steps, pairs, strict=True)]
        yield row("steps to it against synchronous, median of pairs", median(step_ratios), bar=STEPS_BAR)
        second_ratios = [_ratio(own, _seconds(other)) for own, other in zip(seconds, pairs, strict=True)]
        yield row("seconds to it against synchronous, median of pairs", median(second_ratios))
        yield row("seconds to it against synchronous, worst", max(second_ratios))
    yield row("steps to it, median", median(steps))
    yield row("steps to it, worst", max(steps))
    yield row("seconds to it, median", median(seconds), unit="s")
    yield row("seconds to it, worst", max(seconds), unit="s")
    yield row("final reward, median", median(one.final_reward for one in runs))
    yield row("final reward, worst", min(one.final_reward for one in runs))


def _num_missed(runs: Sequence[LearningFigures]) -> int:
    return sum(one.reached_step is None for one in runs)


def _steps(one: LearningFigures) -> float:
    return math.inf if one.reached_step is None else one.reached_step


def _seconds(one: LearningFigures) -> float:
    return math.inf if one.reached_s is None else one.reached_s


def _ratio(value: float, other: float) -> float:
    """Returns value / other; 1 if neither run got there."""
    return 1.0 if math.isinf(value) and math.isinf(other) else value / other
