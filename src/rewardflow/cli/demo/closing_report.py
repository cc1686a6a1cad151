"""Reports the end of the demo: the two runs side by side, and the time saved.

Always true: no schedule can go below the floor: the larger of a step's compute and its calls with all slots in use.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rewardflow.cli.display import duration, stdout_console
from rewardflow.cli.train.closing_report import write_json
from rewardflow.cli.train.live_view import reward_curve
from rewardflow.cli.train.totals import TrainTotals

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

LAST_STEPS = 10
GOOD_REWARD = 0.9
CURVE_WIDTH = 30
_BUSY = 1.5  # the same work took this many times as long: other programs used the machine


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRun:
    """One of the two runs. `durations_s` has one entry for each step; the other times are means over the steps."""

    name: str
    totals: TrainTotals
    durations_s: Sequence[float]

    @property
    def step_s(self) -> float:
        return self.totals.duration_s / self.totals.num_steps

    @property
    def compute_s(self) -> float:
        return sum(self.totals.busy_s.values()) / self.totals.num_steps

    @property
    def exposed_s(self) -> float:
        return self.totals.exposed_s / self.totals.num_steps

    @property
    def hidden_s(self) -> float:
        return self.totals.hidden_s / self.totals.num_steps

    @property
    def final_reward(self) -> float:
        return fmean(self.totals.scores[-LAST_STEPS:])

    def reached_s(self, reward: float) -> float | None:
        """Returns the seconds from the start of the run to the first step with this reward; None if no step had it."""
        ends_s = itertools.accumulate(self.durations_s)
        return next((end_s for end_s, score in zip(ends_s, self.totals.scores, strict=True) if score >= reward), None)

    def to_json(self) -> dict[str, Any]:
        return {
            **self.totals.to_json(),
            "step": {
                "duration_s": self.step_s,
                "compute_s": self.compute_s,
                "exposed_s": self.exposed_s,
                "hidden_s": self.hidden_s,
            },
            "final_reward": self.final_reward,
            "scores": self.totals.scores,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOutcome:
    """The demo's results. `service_s` is the judge's time for a step's calls with every slot in use."""

    synchronous: DemoRun
    overlapped: DemoRun
    calls_per_step: int
    slots: int
    scale: float
    service_s: float

    @property
    def floor_s(self) -> float:
        return max(self.synchronous.compute_s, self.service_s)

    @property
    def saved_s(self) -> float:
        return self.synchronous.totals.duration_s - self.overlapped.totals.duration_s

    @property
    def saved_share(self) -> float:
        return self.saved_s / self.synchronous.totals.duration_s

    def to_json(self) -> dict[str, Any]:
        return {
            "synchronous": self.synchronous.to_json(),
            "overlapped": self.overlapped.to_json(),
            "calls_per_step": self.calls_per_step,
            "slots": self.slots,
            "scale": self.scale,
            "service_s": self.service_s,
            "floor_s": self.floor_s,
            "saved_s": self.saved_s,
            "saved_share": self.saved_share,
        }


def report(outcome: DemoOutcome, *, as_json: bool) -> None:
    if as_json:
        write_json(outcome.to_json())
    else:
        show(outcome, stdout_console())


def show(outcome: DemoOutcome, console: Console) -> None:
    runs = (outcome.synchronous, outcome.overlapped)
    console.print(
        f"\nA tiny model was taught to copy three digits, {runs[0].totals.num_steps:,} steps, each with "
        f"{outcome.calls_per_step:,} verdicts of a judge that takes 1 to 40 s a call, {1 / outcome.scale:,.0f} times "
        f"as fast, {outcome.slots} at once.\n",
        soft_wrap=not console.is_terminal,
    )
    console.print(_table(runs, ascii_only=console.options.ascii_only))
    slower = "the judge, all slots in use" if outcome.service_s > runs[0].compute_s else "compute"
    console.print(
        f"\nfloor: {_seconds(outcome.floor_s)} a step, the larger of compute ({_seconds(runs[0].compute_s)}) and judge "
        f"({_seconds(outcome.service_s)}); here that is {slower}",
        soft_wrap=not console.is_terminal,
    )
    console.print(closing_words(outcome), soft_wrap=not console.is_terminal)


def closing_words(outcome: DemoOutcome) -> str:
    synchronous, overlapped = outcome.synchronous, outcome.overlapped
    rewards = f"a final reward of {overlapped.final_reward:.2f} against {synchronous.final_reward:.2f}"
    slowed = overlapped.compute_s / synchronous.compute_s if synchronous.compute_s else 1.0
    if outcome.saved_s <= 0 and slowed > _BUSY:
        return (
            f"The same work of the device took {slowed:.1f} times as long in the second run: something else used this "
            f"machine, and the two cannot be compared. It ended with {rewards}."
        )
    if outcome.saved_s <= 0:
        return f"Overlapping saved nothing this time, with {rewards}."
    saved = (
        f"Overlapping the judge with generation and training saved {outcome.saved_share:.0%} of the time "
        f"({duration(outcome.saved_s)} of {duration(synchronous.totals.duration_s)}), with {rewards}."
    )
    if slowed <= _BUSY:
        return saved
    return (
        f"{saved} The device's own work took {slowed:.1f} times as long as before: here it is a CPU that the calls, "
        "and perhaps other programs, use at the same time."
    )


def _table(runs: tuple[DemoRun, DemoRun], *, ascii_only: bool) -> Table:
    from rich.table import Table

    grid = Table.grid(padding=(0, 3))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_row("", *(run.name for run in runs))
    for label, seconds in (
        ("step", [run.step_s for run in runs]),
        ("  device at work", [run.compute_s for run in runs]),
        ("  reward time exposed", [run.exposed_s for run in runs]),
        ("  reward time hidden", [run.hidden_s for run in runs]),
    ):
        grid.add_row(label, *map(_seconds, seconds))
    grid.add_row("whole run", *(duration(run.totals.duration_s) for run in runs))
    grid.add_row(f"reward of {GOOD_REWARD} after", *(_when_good(run) for run in runs))
    grid.add_row("reward at the end", *(f"{run.final_reward:.3f}" for run in runs))
    curves = [reward_curve(run.totals.scores, CURVE_WIDTH, ascii_only=ascii_only) for run in runs]
    grid.add_row("reward by step", *curves)
    return grid


def _when_good(run: DemoRun) -> str:
    reached_s = run.reached_s(GOOD_REWARD)
    return "not reached" if reached_s is None else duration(reached_s)


def _seconds(seconds: float) -> str:
    """Shows hundredths: steps here take a fraction of a second, and the runs differ by hundredths."""
    return f"{seconds:.2f} s" if seconds < 9.995 else duration(seconds)
