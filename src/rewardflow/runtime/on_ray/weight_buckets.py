"""Collects weights into buckets, which travel from ranks to engines in other actors.

Always true: every weight is in one bucket, in the order given; the weight that fills a bucket closes it, so a sender
holds less than `max_bytes` and one weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

MAX_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class WeightBucket:
    """Weights by name."""

    weights: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class BucketNote:
    """What the process that forwards a bucket must know, so that the bucket itself need not pass through it."""

    is_empty: bool
    is_last: bool


def next_bucket(
    weights: Iterator[tuple[str, Tensor]], *, keeps: bool, max_bytes: int = MAX_BYTES
) -> tuple[WeightBucket, BucketNote]:
    """Fills the next bucket. With `keeps=False` a rank only helps to gather: its bucket is empty, but closes alike."""
    bucket: dict[str, Tensor] = {}
    num_bytes = 0
    for name, weight in weights:
        num_bytes += weight.nbytes
        if keeps:
            bucket[name] = weight.to("cpu", copy=True)
        if num_bytes >= max_bytes:
            return WeightBucket(bucket), BucketNote(is_empty=not bucket, is_last=False)
    return WeightBucket(bucket), BucketNote(is_empty=not bucket, is_last=True)
