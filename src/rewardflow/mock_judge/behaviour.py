"""Decides how long a call takes, and whether and how it fails.

Always true: a plan is a function of the seed, the request's content and how often that request was admitted before.
It does not depend on the order of requests, their timing or other requests, so that runs can be compared. A retry of a
failed call is a new call, with a new random draw.
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
    """Delay and fault of one call. `luck`, a random number in [0, 1), decides the details of the fault."""

    delay_s: float
    fault: Fault | None
    luck: float


class Behaviour:
    """Makes the plans that follow from a seed and the settings."""

    def __init__(self, settings: MockJudgeSettings) -> None:
        self._distribution = settings.distribution
        self._scale = settings.scale
        self._seed = str(settings.seed).encode()
        self._shares = [(fault, settings.faults[fault]) for fault in FAULTS if settings.faults.get(fault)]

    def key_of(self, content: Any) -> bytes:
        """Returns a key of a request, equal for equal JSON whatever the order of its keys and its whitespace."""
        return blake2b(canonical(content), digest_size=16).digest()

    def plan(self, key: bytes, times_before: int) -> PlannedReply:
        digest = blake2b(b"%b %d %b" % (key, times_before, self._seed), digest_size=24).digest()
        delay_luck, fault_luck, luck = (number / _TWO_TO_64 for number in struct.unpack(">3Q", digest))
        # Rounding may give 1.0 for the last few of 2**64 numbers; the distributions accept it.
        return PlannedReply(self._distribution(delay_luck) * self._scale, self._fault(fault_luck), luck)

    def _fault(self, luck: float) -> Fault | None:
        for fault, share in self._shares:
            if luck < share:
                return fault
            luck -= share
        return None
