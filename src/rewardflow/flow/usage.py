"""Where a device's time went.

Always true: every second since the start has exactly one label: the work that was done, or the cause of doing none;
the labels' seconds add up to the time that passed. Time in which the device waited for verdicts is exposed reward
time; all other time in which a verdict was out, of a rollout that had ended, is hidden.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Work = Literal["generate", "log_probs", "update", "publish"]
Cause = Literal["reward", "generation", "checkpoint", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageTotals:
    """Seconds, up to one moment, and the tokens of the responses that were generated in them."""

    busy_s: Mapping[str, float]
    idle_s: Mapping[str, float]
    hidden_s: float
    generated_tokens: int = 0

    @property
    def wall_s(self) -> float:
        return self.total_busy_s + sum(self.idle_s.values())

    @property
    def total_busy_s(self) -> float:
        return sum(self.busy_s.values())

    @property
    def exposed_s(self) -> float:
        return self.idle_s.get("reward", 0.0)

    def since(self, earlier: UsageTotals) -> UsageTotals:
        return UsageTotals(
            busy_s=_difference(self.busy_s, earlier.busy_s),
            idle_s=_difference(self.idle_s, earlier.idle_s),
            hidden_s=self.hidden_s - earlier.hidden_s,
            generated_tokens=self.generated_tokens - earlier.generated_tokens,
        )

    def tokens_per_s(self, num_tokens: int, work: Work) -> float | None:
        """Of so many, over the time of this work; None where it took none."""
        spent_s = self.busy_s.get(work, 0.0)
        return num_tokens / spent_s if spent_s > 0 else None


class Usage:
    """Told when work starts and ends, what is waited for, and how many verdicts are out."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._busy: defaultdict[str, float] = defaultdict(float)
        self._idle: defaultdict[str, float] = defaultdict(float)
        self._hidden_s = 0.0
        self._generated_tokens = 0
        self._work: Work | None = None
        self._causes: list[Cause] = []
        self._verdicts_out = 0
        self._since_s = self._loop.time()

    @property
    def work(self) -> Work | None:
        return self._work

    @property
    def cause(self) -> Cause:
        """Why nothing is done, while nothing is."""
        return self._causes[-1] if self._causes else "other"

    @property
    def verdicts_out(self) -> int:
        return self._verdicts_out

    @contextlib.contextmanager
    def working(self, work: Work) -> Iterator[None]:
        self._settle()
        self._work = work
        try:
            yield
        finally:
            self._settle()
            self._work = None

    @contextlib.contextmanager
    def waiting_for(self, cause: Cause) -> Iterator[None]:
        self._settle()
        self._causes.append(cause)
        try:
            yield
        finally:
            self._settle()
            self._causes.remove(cause)

    def add_verdicts_out(self, count: int) -> None:
        self._settle()
        self._verdicts_out += count

    def add_generated(self, num_tokens: int) -> None:
        self._generated_tokens += num_tokens

    def totals(self) -> UsageTotals:
        self._settle()
        return UsageTotals(
            busy_s=dict(self._busy),
            idle_s=dict(self._idle),
            hidden_s=self._hidden_s,
            generated_tokens=self._generated_tokens,
        )

    def _settle(self) -> None:
        """Book the time since the last change under the label that held."""
        now = self._loop.time()
        passed_s = now - self._since_s
        self._since_s = now
        if self._work is not None:
            self._busy[self._work] += passed_s
        else:
            self._idle[self.cause] += passed_s
        is_exposed = self._work is None and self.cause == "reward"
        if self._verdicts_out and not is_exposed:
            self._hidden_s += passed_s


def _difference(later: Mapping[str, float], earlier: Mapping[str, float]) -> dict[str, float]:
    return {name: seconds - earlier.get(name, 0.0) for name, seconds in later.items()}
