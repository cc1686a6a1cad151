"""The settings of batches, with their defaults and rules.

Always true: a settings record that exists is valid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from rewardflow.errors import InvalidInput
from rewardflow.reward.settings import check_names
from rewardflow.settings.rules import check_choices

BatchApiName = Literal["openai", "anthropic"]
WhenInterrupted = Literal["keep", "cancel"]

_MOST: Mapping[BatchApiName, Mapping[str, int]] = {  # what the services take in one batch
    "openai": {"max_requests": 50_000, "max_bytes": 200_000_000},
    "anthropic": {"max_requests": 100_000, "max_bytes": 256_000_000},
}
_WINDOW_S = 24 * 3600.0  # both services end a batch after 24 hours at the latest
_LONGEST_S = 30 * 3600.0  # for a call: its batch, and what comes before and after it
_TIMEOUTS = ("timeout_s", "verdict_timeout_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """How the requests of a judge are gathered into batches. `docs/batches.md` explains each setting."""

    api: BatchApiName = "openai"
    max_requests: int = 10_000
    max_bytes: int = 50_000_000
    linger_s: float = 10.0
    poll_s: float = 5.0
    price_share: float = 0.5
    when_interrupted: WhenInterrupted = "keep"

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("max_requests", "max_bytes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidInput(f"{name} of a batch must be a whole number of at least 1, got {value!r}")
            if value > (most := _MOST[self.api][name]):
                raise InvalidInput(f"{name} of a batch must be at most {most:,} with api={self.api}, got {value:,}")
        for name in ("linger_s", "poll_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise InvalidInput(f"{name} of a batch must be a positive number, got {value!r}")
        share = self.price_share
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise InvalidInput(f"price_share of a batch must lie in [0, 1], got {share!r}")

    @classmethod
    def of(cls, batch: BatchSettings | Mapping[str, Any] | None) -> BatchSettings | None:
        """Accepts a record, or a mapping as in a reward file."""
        if batch is None or isinstance(batch, BatchSettings):
            return batch
        if not isinstance(batch, Mapping):
            raise InvalidInput(f"batch must be a mapping such as {{api: openai}}, got {batch!r}")
        check_names(batch, [one.name for one in fields(cls)])
        return cls(**batch)

    @property
    def usual_limits(self) -> dict[str, Any]:
        """The limits of an agent whose calls wait for batches; those that a user sets win.

        All calls of a batch are in flight at once, for hours, and the service's limits on requests do not hold.
        """
        return {
            "max_concurrency": self.max_requests,
            "timeout_s": _LONGEST_S,
            "rpm": None,
            "tpm": None,
            "retry_budget": 1.0,  # what expired is sent again in another batch
        }


def check_timeouts(limits: Mapping[str, Any]) -> None:
    """Refuses limits that end a call before its batch can be over: its answer would be paid for and not be scored."""
    for name in _TIMEOUTS:
        value = limits.get(name)
        if value is not None and value < _WINDOW_S:
            raise InvalidInput(
                f"{name} must be at least {_WINDOW_S:g} with batch, because a batch may take 24 hours, got "
                f"{name}={value:g}; remove it: without it a call waits for up to {_LONGEST_S / 3600:g} hours"
            )
