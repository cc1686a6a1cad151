"""Ends a run in which nothing is scored any more.

Always true: a run ends after `failures.stop_after` steps in a row without one score, with the first reason; a single
score in between starts the count again. A step in which nothing was judged at all does not count.
"""

from __future__ import annotations

from rewardflow.errors import NothingScored
from rewardflow.flow.reports import StepReport
from rewardflow.settings.sections.outputs import FailureSettings


class FailureWatch:
    """Receives the report of each step, after everybody who keeps it."""

    def __init__(self, settings: FailureSettings) -> None:
        self._stop_after = settings.stop_after
        self._num_unscored = 0
        self._first: tuple[str, str] | None = None

    def stepped(self, report: StepReport) -> None:
        if report.num_scored:
            self._num_unscored, self._first = 0, None
            return
        if not report.failed:
            return
        self._num_unscored += 1
        if self._first is None:
            kind = max(report.failed, key=lambda one: report.failed[one])
            self._first = kind, report.first_errors.get(kind, "")
        if self._num_unscored == self._stop_after:
            raise NothingScored(self._message(*self._first))

    def _message(self, kind: str, error: str) -> str:
        steps = "the last step" if self._num_unscored == 1 else f"the last {self._num_unscored} steps"
        return (
            f"all verdicts of {steps} failed, so nothing was learnt; the first: {kind}: {error}. "
            "After the cause is gone, --resume limits.replay_failures=false asks for failed verdicts again"
        )
