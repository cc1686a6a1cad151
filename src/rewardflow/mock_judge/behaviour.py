"""What happens to a call: how long it takes, and whether and how it fails.

Always true: a plan is a function of the seed, the request's content and how often that request was admitted before.
The order in which requests arrive, their timing and other requests change nothing, so that runs can be compared, and a
retry of a call that failed is a new call with new luck.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from rewardflow.mock_judge.settings import FAULTS, Fault, MockJudgeSettings
from rewardflow.reward.journal.canonical import canonical

_TWO_TO_64 = 2.0**64


@dataclass(frozen=True, slots=True)
class PlannedReply:
    """The fate of one call. `luck`, in [0, 1), decides the details of its fault."""

    delay_s: float
    fault: Fault | None
    luck: float


class Behaviour:
    """The plans that a seed and settings give."""

    def __init__(self, settings: MockJudgeSettings) -> None:
        self._distribution = settings.distribution
        self._scale = settings.scale
        self._seed = str(settings.seed).encode()
        self._shares = [(fault, settings.faults[fault]) for fault in FAULTS if settings.faults.get(fault)]

    def key_of(self, content: Any) -> bytes:
        """Stands for a request: equal for equal JSON, whatever the order of its keys and its whitespace."""
        return blake2b(canonical(content), digest_size=16).digest()

    def plan(self, key: bytes, times_before: int) -> PlannedReply:
        digest = blake2b(b"%b %d %b" % (key, times_before, self._seed), digest_size=24).digest()
        delay_luck, fault_luck, luck = (number / _TWO_TO_64 for number in struct.unpack(">3Q", digest))
        # Rounding may give 1.0 for the last few of 2**64 numbers, which the distributions do not mind.
        return PlannedReply(self._distribution(delay_luck) * self._scale, self._fault(fault_luck), luck)

    def _fault(self, luck: float) -> Fault | None:
        for fault, share in self._shares:
            if luck < share:
                return fault
            luck -= share
        return None
