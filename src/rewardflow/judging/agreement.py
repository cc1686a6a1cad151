"""Measures how well scores agree with labels or with other scores, with intervals.

Always true: a figure that the data cannot give is None, never 0; an interval resamples whole groups, because answers to
one question are not independent, and a group that is drawn twice counts as two groups; the same pairs give the same
figures and intervals.

The formulas are written here, because the core depends on no numerical library, and each is a few lines.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

RESAMPLES = 400
CONFIDENCE = 0.95
_SEED = 20
_MIN_RESAMPLES_SHARE = 0.9  # of resamples in which the figure must exist


@dataclass(frozen=True, slots=True)
class ScorePair:
    """A score beside what it is compared with, and the group of the answer."""

    score: float
    other: float
    group: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its interval; the ends are None if resampling could not give them."""

    value: float
    low: float | None = None
    high: float | None = None

    def to_json(self) -> dict[str, float | None]:
        return {"value": self.value, "low": self.low, "high": self.high}


Figure = Callable[[Sequence[ScorePair]], float | None]


def estimate(pairs: Sequence[ScorePair], figure: Figure, *, resamples: int = RESAMPLES) -> Estimate | None:
    """Returns the figure of the pairs with a percentile interval over resampled groups; None if there is no figure."""
    value = figure(pairs)
    if value is None:
        return None
    groups = _DrawnGroups(pairs)
    draw = random.Random(_SEED)
    drawn = sorted(
        found
        for _ in range(resamples if groups.count > 1 else 0)
        if (found := figure(groups.resampled(draw))) is not None
    )
    if len(drawn) < _MIN_RESAMPLES_SHARE * resamples:
        return Estimate(value)
    outside = (1 - CONFIDENCE) / 2
    low = drawn[math.floor(outside * len(drawn))]
    high = drawn[min(math.floor((1 - outside) * len(drawn)), len(drawn) - 1)]
    return Estimate(value, low, high)


class _DrawnGroups:
    """Groups to draw from. Each copy of a group in a resample has a name of its own, so that figures keep them apart.

    Copies are kept for later resamples: a group is rarely drawn more than a few times in one.
    """

    def __init__(self, pairs: Sequence[ScorePair]) -> None:
        groups: defaultdict[str, list[ScorePair]] = defaultdict(list)
        for pair in pairs:
            groups[pair.group].append(pair)
        self._copies = [[members] for members in groups.values()]  # of each group, from the first copy on
        self.count = len(self._copies)

    def resampled(self, draw: random.Random) -> list[ScorePair]:
        """Draws as many groups as there are, with replacement."""
        times: Counter[int] = Counter()
        pairs: list[ScorePair] = []
        for number in draw.choices(range(self.count), k=self.count):
            copies = self._copies[number]
            if times[number] == len(copies):
                copies.append([replace(pair, group=f"{pair.group}\0{len(copies)}") for pair in copies[0]])
            pairs += copies[times[number]]
            times[number] += 1
        return pairs


def accuracy(threshold: float) -> Figure:
    """Returns the figure: the share of pairs whose both sides are on the same side of the threshold."""

    def figure(pairs: Sequence[ScorePair]) -> float | None:
        if not pairs:
            return None
        return sum((pair.score >= threshold) == (pair.other >= threshold) for pair in pairs) / len(pairs)

    return figure


def kappa(threshold: float) -> Figure:
    """Returns the figure: Cohen's kappa of both sides of the threshold: 1 is agreement, 0 is chance.

    There is none if chance agreement is certain: if each side gives one class to all answers, and both the same.
    """

    def figure(pairs: Sequence[ScorePair]) -> float | None:
        agreed = accuracy(threshold)(pairs)
        if agreed is None:
            return None
        good = sum(pair.score >= threshold for pair in pairs) / len(pairs)
        other_good = sum(pair.other >= threshold for pair in pairs) / len(pairs)
        by_chance = good * other_good + (1 - good) * (1 - other_good)
        return None if by_chance >= 1 else (agreed - by_chance) / (1 - by_chance)

    return figure


def spearman(pairs: Sequence[ScorePair]) -> float | None:
    """Returns the rank correlation; None if one side is constant."""
    return correlation(ranks([pair.score for pair in pairs]), ranks([pair.other for pair in pairs]))


def ordered_pairs(pairs: Sequence[ScorePair]) -> float | None:
    """Returns the share of answers to one question that the score puts in the other side's order; a tie is half.

    This is what an advantage within a group depends on. Counts two answers only if the other side tells them apart.
    """
    groups: defaultdict[str, list[ScorePair]] = defaultdict(list)
    for pair in pairs:
        groups[pair.group].append(pair)
    won, count = 0.0, 0
    for members in groups.values():
        for i, one in enumerate(members):
            for another in members[:i]:
                if one.other == another.other:
                    continue
                count += 1
                better, worse = (one, another) if one.other > another.other else (another, one)
                won += 0.5 if better.score == worse.score else float(better.score > worse.score)
    return won / count if count else None


def mean_difference(pairs: Sequence[ScorePair]) -> float | None:
    """Returns the mean of score minus other."""
    return sum(pair.score - pair.other for pair in pairs) / len(pairs) if pairs else None


def ranks(values: Sequence[float]) -> list[float]:
    """Returns ranks from 1; equal values share the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranked = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for place in order[start : end + 1]:
            ranked[place] = (start + end) / 2 + 1
        start = end + 1
    return ranked


def correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Returns Pearson's correlation; None with fewer than two values, or if one side is constant."""
    count = len(one)
    if count < 2:
        return None
    mean, other_mean = math.fsum(one) / count, math.fsum(other) / count
    covariance = math.fsum((x - mean) * (y - other_mean) for x, y in zip(one, other, strict=True))
    spread = math.fsum((x - mean) ** 2 for x in one) * math.fsum((y - other_mean) ** 2 for y in other)
    return max(-1.0, min(1.0, covariance / math.sqrt(spread))) if spread > 0 else None
