"""A scenario of the campaign: a promise, and a trial that tries to break it with one seed.

Always true: a trial depends on its seed, so a promise that was broken can be broken again with that seed (as far as the
machine's own timing allows).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Trial = Callable[[int, Path], "Tried"]

_MAX_TRIAL_S = 300.0


@dataclass(frozen=True, slots=True)
class Tried:
    """What one trial found: how many cases it tried, and a complaint for each broken promise."""

    count: int
    complaints: tuple[str, ...] = ()
    note: str = ""  # what to show on the screen beside the counts

    @property
    def num_lost(self) -> int:
        return min(len(self.complaints), self.count)


@dataclass(frozen=True, slots=True)
class Scenario:
    """`trial(seed, folder)` runs one trial in an empty folder. `seconds` is its share of the short campaign."""

    name: str
    promise: str
    unit: str  # what a trial counts
    seconds: float
    trial: Trial


@dataclass(frozen=True, slots=True)
class Tally:
    """The sum of a scenario's trials."""

    scenario: Scenario
    num_trials: int = 0
    tried: int = 0
    lost: int = 0
    worst_seed: int | None = None
    worst_lost: int = 0
    worst_complaint: str = ""
    elapsed_s: float = 0.0
    note: str = ""  # of the last trial

    @property
    def held(self) -> int:
        return self.tried - self.lost

    def plus(self, seed: int, trial: Tried, elapsed_s: float) -> Tally:
        is_worst = trial.num_lost > self.worst_lost
        return Tally(
            self.scenario,
            self.num_trials + 1,
            self.tried + trial.count,
            self.lost + trial.num_lost,
            seed if is_worst else self.worst_seed,
            trial.num_lost if is_worst else self.worst_lost,
            trial.complaints[0] if is_worst else self.worst_complaint,
            elapsed_s,
            trial.note,
        )


def in_real_time(trial: Callable[[int, Path], Coroutine[Any, Any, Tried]]) -> Trial:
    """Makes a trial of a coroutine on an ordinary event loop. A trial that does not end breaks a promise too."""

    async def limited(seed: int, folder: Path) -> Tried:
        try:
            async with asyncio.timeout(_MAX_TRIAL_S):
                return await trial(seed, folder)
        except TimeoutError:
            return Tried(1, (f"the trial must end within {_MAX_TRIAL_S:.0f} s, and did not",))

    return lambda seed, folder: asyncio.run(limited(seed, folder))
