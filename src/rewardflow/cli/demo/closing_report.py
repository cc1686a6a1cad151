"""Reports the end of the demo: the two runs side by side, the time to the target, and what to do next.

Always true: no schedule can go below the floor: the larger of a step's compute and its calls with all slots in use. If
other programs used the machine, the report says what does not depend on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewardflow.bench.learning.target_reward import TARGET, final_reward, reached_step
from rewardflow.cli.demo.expected_steps import ExpectedSteps
from rewardflow.cli.display import duration, stdout_console
from rewardflow.cli.own_command import own_command
from rewardflow.cli.safe_text import safe
from rewardflow.cli.train.closing_report import write_json
from rewardflow.cli.train.live_view import reward_curve
from rewardflow.cli.train.totals import TrainTotals

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

CURVE_WIDTH = 30
_SAME_REWARD = 0.02
# The same work took this many times as long: other programs used the machine. Beside calls alone it takes 1.7 times as
# long, because agent and device share an interpreter, whose lock small operations take often. The synchronous run
# computes while few calls are out.
_BUSY, _BUSY_ALONE = 2.2, 1.8


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
        return final_reward(self.totals.scores)

    @property
    def reached_s(self) -> float | None:
        """Seconds from the start of the run until its reward was at the target; None if it never was."""
        step = reached_step(self.totals.scores)
        return None if step is None else sum(self.durations_s[:step])

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
            "reached_s": self.reached_s,
            "scores": self.totals.scores,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOutcome:
    """The demo's results. `service_s` is the judge's time for a step's calls with every slot in use."""

    synchronous: DemoRun
    overlapped: DemoRun
    expected: ExpectedSteps
    calls_per_step: int
    slots: int
    scale: float
    service_s: float
    alone_s: float  # a step's work of the device without a judge, measured before the runs
    folder: Path  # both runs are kept in it

    @property
    def floor_s(self) -> float:
        return max(self.synchronous.compute_s, self.service_s)

    @property
    def slowed(self) -> tuple[float, float]:
        """How many times as long as alone the device's own work took in each run."""
        runs = (self.synchronous, self.overlapped)
        one, other = (run.compute_s / self.alone_s if self.alone_s else 1.0 for run in runs)
        return one, other

    @property
    def is_under_load(self) -> bool:
        """Whether other programs used the machine during a run."""
        one, other = self.slowed
        return one > _BUSY_ALONE or other > _BUSY * one

    def to_json(self) -> dict[str, Any]:
        return {
            "synchronous": self.synchronous.to_json(),
            "overlapped": self.overlapped.to_json(),
            "calls_per_step": self.calls_per_step,
            "slots": self.slots,
            "scale": self.scale,
            "service_s": self.service_s,
            "floor_s": self.floor_s,
            "alone_s": self.alone_s,
            "expected": self.expected.to_json(),
            "folder": str(self.folder),
        }


def report(outcome: DemoOutcome, *, as_json: bool) -> None:
    if as_json:
        write_json(outcome.to_json())
    else:
        show(outcome, stdout_console())


def show(outcome: DemoOutcome, console: Console) -> None:
    runs = (outcome.synchronous, outcome.overlapped)
    console.print(
        f"\nA tiny model learnt to copy three digits better, in {runs[0].totals.num_steps:,} steps, each with "
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
    wraps = not console.is_terminal
    console.print()
    console.print(headline(outcome), style="bold", soft_wrap=wraps)
    if outcome.is_under_load:
        console.print(under_load(outcome), soft_wrap=wraps)
    console.print()
    for line in next_steps(outcome):
        console.print(line, soft_wrap=True)


def headline(outcome: DemoOutcome) -> str:
    """Says in one sentence what overlapping did to the time to the target, which is what users pay for."""
    synchronous, overlapped = outcome.synchronous, outcome.overlapped
    one, other = synchronous.final_reward, overlapped.final_reward
    rewards = f"a final reward of {other:.2f} instead of {one:.2f}"
    if abs(one - other) <= _SAME_REWARD:
        rewards = f"the same final reward ({other:.2f} and {one:.2f})"
    if overlapped.reached_s is None or synchronous.reached_s is None:
        which = "neither run" if overlapped.reached_s is synchronous.reached_s else _which_reached(outcome)
        return f"In {synchronous.totals.num_steps:,} steps {which} reached a reward of {TARGET}, with {rewards}."
    with_s, without_s = duration(overlapped.reached_s), duration(synchronous.reached_s)
    if overlapped.reached_s < synchronous.reached_s:
        sooner = f"(-{1 - overlapped.reached_s / synchronous.reached_s:.0%})"
        return f"Overlapping reached a reward of {TARGET} in {with_s} instead of {without_s} {sooner}, with {rewards}."
    return f"Overlapping reached a reward of {TARGET} no sooner: in {with_s} instead of {without_s}, with {rewards}."


def _which_reached(outcome: DemoOutcome) -> str:
    return "only the overlapped run" if outcome.synchronous.reached_s is None else "only the synchronous run"


def under_load(outcome: DemoOutcome) -> str:
    """Says what holds although other programs used the machine during a run."""
    expected = outcome.expected
    one, other = outcome.slowed
    return (
        f"The device's own work took {one:.1f} and {other:.1f} times as long as before the runs: here it is a CPU that "
        f"the calls, and perhaps other programs, use at the same time. Independent of that: the device waited "
        f"{_seconds(outcome.overlapped.exposed_s)} a step for verdicts instead of "
        f"{_seconds(outcome.synchronous.exposed_s)}, and the planner predicts steps of "
        f"{_seconds(expected.overlapped_s)} instead of {_seconds(expected.synchronous_s)} "
        f"(-{expected.saved_share:.0%}) for this workload on a device of its own."
    )


def next_steps(outcome: DemoOutcome) -> Sequence[str]:
    folder = safe(str(outcome.folder))
    return (
        f"look at both runs:         {folder}/comparison.html",
        f"plan a run like this one:  {safe(own_command())} plan --from {folder}/synchronous",
        "use a reward of your own:  docs/quick_start.md",
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
    grid.add_row(f"reward of {TARGET} after", *(_when_good(run) for run in runs))
    grid.add_row("reward at the end", *(f"{run.final_reward:.3f}" for run in runs))
    curves = [reward_curve(run.totals.scores, CURVE_WIDTH, ascii_only=ascii_only) for run in runs]
    grid.add_row("reward by step", *curves)
    return grid


def _when_good(run: DemoRun) -> str:
    return "not reached" if run.reached_s is None else duration(run.reached_s)


def _seconds(seconds: float) -> str:
    """Shows hundredths: steps here take a fraction of a second, and the runs differ by hundredths."""
    return f"{seconds:.2f} s" if seconds < 9.995 else duration(seconds)
