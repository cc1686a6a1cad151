"""Runs the scenarios of the campaign one after another, each for its share of the time, and counts what they find.

Always true: the n-th trial of a scenario gets the campaign's seed plus n; a scenario has at least one trial; an error
that escapes from a trial counts as a broken promise and does not stop the campaign.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rewardflow.bench.chaos.broken_disks import CHANGED_BYTES, CHANGED_DIGITS, FULL_DISK, LOST_JOURNAL
from rewardflow.bench.chaos.budget_runs import BUDGETS
from rewardflow.bench.chaos.killed_scoring import KILLS, KILLS_WITH_CAP
from rewardflow.bench.chaos.late_replies import LATE_REPLIES
from rewardflow.bench.chaos.mixed_answers import ECHOED_KEYS, MIXED_ANSWERS
from rewardflow.bench.chaos.outages import ABSURD_HEADERS, OUTAGES, POISON
from rewardflow.bench.chaos.scenario import Scenario, Tally, Tried
from rewardflow.bench.chaos.two_at_once import TWO_AT_ONCE
from rewardflow.errors import InvalidInput

SCENARIOS: tuple[Scenario, ...] = (
    MIXED_ANSWERS,
    LATE_REPLIES,
    ECHOED_KEYS,
    KILLS,
    KILLS_WITH_CAP,
    BUDGETS,
    TWO_AT_ONCE,
    FULL_DISK,
    CHANGED_DIGITS,
    CHANGED_BYTES,
    LOST_JOURNAL,
    POISON,
    OUTAGES,
    ABSURD_HEADERS,
)
LONG = 30.0  # how much longer the long campaign is


def scenarios_named(names: Sequence[str]) -> tuple[Scenario, ...]:
    """Returns the scenarios of these names, or all of them if none is named."""
    known = {scenario.name: scenario for scenario in SCENARIOS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InvalidInput(f"--only must name a scenario ({', '.join(known)}), got {unknown[0]!r}")
    return tuple(known[name] for name in names) or SCENARIOS


def run_scenario(scenario: Scenario, *, seed: int, seconds: float, max_trials: int | None = None) -> Iterator[Tally]:
    """Yields the sums after each trial. The last trial may end later than `seconds`, but none starts later."""
    tally, began_s = Tally(scenario), time.monotonic()
    while tally.num_trials == 0 or time.monotonic() - began_s < seconds:
        if tally.num_trials == max_trials:
            return
        this_seed = seed + tally.num_trials
        tried = _try(scenario, this_seed)
        tally = tally.plus(this_seed, tried, time.monotonic() - began_s)
        yield tally


def _try(scenario: Scenario, seed: int) -> Tried:
    with tempfile.TemporaryDirectory(prefix="rewardflow-chaos-", ignore_cleanup_errors=True) as folder:
        try:
            return scenario.trial(seed, Path(folder))
        except Exception as error:  # whatever a trial raises, the others must still be tried
            return Tried(1, (f"the trial ended with {type(error).__name__}: {error}",))
