"""Weights on their way from ranks to engines elsewhere, as many at a time as travel well together.

Always true: every weight is in one bucket, in the order it was given; a bucket is closed by the weight that fills it,
so whoever sends holds less than `max_bytes` and one weight.
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
    """What whoever passes a bucket on needs to know of it, so that it need not travel there itself."""

    is_empty: bool
    is_last: bool


def next_bucket(
    weights: Iterator[tuple[str, Tensor]], *, keeps: bool, max_bytes: int = MAX_BYTES
) -> tuple[WeightBucket, BucketNote]:
    """`keeps`: False for who only helps to gather the weights; its buckets close with the others' and are empty."""
    bucket: dict[str, Tensor] = {}
    num_bytes = 0
    for name, weight in weights:
        num_bytes += weight.nbytes
        if keeps:
            bucket[name] = weight.to("cpu", copy=True)
        if num_bytes >= max_bytes:
            return WeightBucket(bucket), BucketNote(is_empty=not bucket, is_last=False)
    return WeightBucket(bucket), BucketNote(is_empty=not bucket, is_last=True)
