"""Measures whether the mini-batches of a step differ: correlates figures of its samples with the mini-batch's index.

Always true: every correlation lies between -1 and 1. It is near 0 if groups come into mini-batches by their prompts.
It is large if they come by their verdicts and, for example, long answers take longer to judge.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from rewardflow.flow.records import Sample, num_sampled_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniBatchBias:
    """Correlations with the mini-batch's index; None with one mini-batch, or if the figure does not vary."""

    length: float | None = None  # tokens of the response
    score: float | None = None
    latency: float | None = None  # of verdicts that needed a call


@dataclass(slots=True)
class _Pairs:
    indices: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, index: int, value: float) -> None:
        self.indices.append(index)
        self.values.append(value)

    def correlation(self) -> float | None:
        try:
            return min(1.0, max(-1.0, statistics.correlation(self.indices, self.values)))
        except statistics.StatisticsError:  # fewer than two values, or all the same
            return None


@dataclass(slots=True)
class MiniBatchFigures:
    """The figures of the samples that a step has trained so far, each with the index of its mini-batch."""

    _lengths: _Pairs = field(default_factory=_Pairs)
    _scores: _Pairs = field(default_factory=_Pairs)
    _latencies_s: _Pairs = field(default_factory=_Pairs)

    def add(self, samples: Sequence[Sample], mini_batch: int) -> None:
        for sample in samples:
            reward = sample.reward
            self._lengths.add(mini_batch, num_sampled_tokens(sample.rollout))
            if reward.value is not None:
                self._scores.add(mini_batch, reward.value)
            if reward.attempts and not reward.cached:  # a verdict without a call has no latency
                self._latencies_s.add(mini_batch, reward.latency_s)

    def latencies_by_mini_batch(self) -> list[list[float]]:
        """Returns the latencies of each mini-batch's verdicts, in the order of training."""
        count = int(max(self._latencies_s.indices, default=-1)) + 1
        found: list[list[float]] = [[] for _ in range(count)]
        for index, latency_s in zip(self._latencies_s.indices, self._latencies_s.values, strict=True):
            found[int(index)].append(latency_s)
        return found

    def bias(self) -> MiniBatchBias:
        return MiniBatchBias(
            length=self._lengths.correlation(),
            score=self._scores.correlation(),
            latency=self._latencies_s.correlation(),
        )
