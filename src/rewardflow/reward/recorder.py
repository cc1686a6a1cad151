"""Writes what happens to the run directory: every event, and one aggregate for each step.

Always true: a step's aggregate is written whenever nothing of the step is pending any more; the last one counts, and
holds what all sessions of a resumed run paid for the step.
"""

from __future__ import annotations

from os import PathLike

from rewardflow.events import CallEnded, Event, GroupDelivered, VerdictReached
from rewardflow.run_directory import RunDirectory, read_steps
from rewardflow.step_totals import StepTotals

SOURCE = "reward"


class Recorder:
    """The agent's event sink."""

    def __init__(self, path: str | PathLike[str]) -> None:
        directory = RunDirectory.at(path)
        self._earlier = {step: lines[SOURCE] for step, lines in read_steps(path).items() if SOURCE in lines}
        self._events = directory.open_events()
        self._steps = directory.open_steps()
        self._totals: dict[int, StepTotals] = {}

    def emit(self, event: Event) -> None:
        self._events.emit(event)
        match event:
            case CallEnded():
                self._step(event.step).call_ended(event)
            case VerdictReached():
                self._step(event.step).verdict(event)
            case GroupDelivered():
                self._step(event.step).group(event)

    def step_idle(self, step: int) -> None:
        self._steps.append(self._step(step).to_json())

    def close(self) -> None:
        """Blocks until everything is on disk."""
        self._events.close()
        self._steps.close()

    def _step(self, step: int) -> StepTotals:
        totals = self._totals.get(step)
        if totals is None:
            totals = self._totals[step] = StepTotals(step, SOURCE)
            if step in self._earlier:
                totals.carry_over(self._earlier[step])
        return totals
