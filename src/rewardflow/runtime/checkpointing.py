"""Saves a run at the boundaries between its steps, and ends it there when its time is up or somebody asks for it.

Always true: the device waits for the copy to memory, and for the disk only at the end of the run or while the save
before is unfinished; a save that fails is a warning, and the run continues with the checkpoints it had. Where a
validation decides which checkpoint is the best, every measured version is saved, and stays until it was compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from rewardflow.checkpoint.fingerprint import fingerprint
from rewardflow.checkpoint.store import CheckpointStore
from rewardflow.errors import CheckpointError
from rewardflow.flow.records import Boundary
from rewardflow.flow.reports import StepReport
from rewardflow.flow.validation.validation_report import Validated
from rewardflow.runtime.records.flat_metrics import scalars
from rewardflow.settings.rules import did_you_mean
from rewardflow.settings.run_settings import RunSettings

if TYPE_CHECKING:
    from rewardflow.checkpoint.snapshot import Snapshot

logger = logging.getLogger(__name__)

_MARGIN = 1.2  # steps differ, and so do disks
_S_PER_HOUR = 3600.0
_S_PER_MINUTE = 60.0

StopReason = Literal["max_hours", "audit", "signal"]


class TimeBudget:
    """Says when a run must end, where a cluster kills what takes longer than `max_hours`.

    Time is up while another step as long as the longest so far, and a save, would still fit.
    """

    def __init__(self, max_hours: float | None, *, started_s: float) -> None:
        self._ends_s = None if max_hours is None else started_s + max_hours * _S_PER_HOUR
        self._longest_step_s = 0.0
        self._longest_save_s = 0.0

    @property
    def is_limited(self) -> bool:
        return self._ends_s is not None

    def stepped(self, duration_s: float) -> None:
        self._longest_step_s = max(self._longest_step_s, duration_s)

    def saved(self, duration_s: float) -> None:
        self._longest_save_s = max(self._longest_save_s, duration_s)

    def is_up(self, now_s: float) -> bool:
        reserve_s = _MARGIN * (self._longest_step_s + self._longest_save_s)
        return self._ends_s is not None and now_s + reserve_s >= self._ends_s


class StoppedEarly(Exception):
    """Ends the loop at a boundary, for want of time or on request. A resumed run trains `next_step` first."""

    def __init__(self, next_step: int, reason: StopReason) -> None:
        super().__init__(f"stopped before step {next_step}: {reason}")
        self.next_step = next_step
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointerStatistics:
    """Counts since the start of this process."""

    num_saved: int = 0
    num_failed: int = 0
    last_step: int | None = None  # that was saved
    stopped_by: StopReason | None = None  # why the run ended before its last step
    longest_save_s: float = 0.0


class Checkpointer:
    """The `at_boundary` of a flow. `take` copies the run's state; `flush` writes the records of saved steps."""

    def __init__(
        self,
        settings: RunSettings,
        store: CheckpointStore,
        *,
        take: Callable[[Boundary], Awaitable[Snapshot]],
        flush: Callable[[], None],
        writer: Executor,
        budget: TimeBudget,
    ) -> None:
        self._settings = settings
        self._store = store
        self._take = take
        self._flush = flush
        self._writer = writer
        self._budget = budget
        self._fingerprint = fingerprint(settings)
        self._is_asked = False
        self._stop_reason: StopReason | None = None
        self._last_saved_s = asyncio.get_running_loop().time()
        self._score: float | None = None
        self._has_complained = False
        self._writing: Future[None] | None = None
        self._rating: Future[None] | None = None
        self._statistics = CheckpointerStatistics()

    def statistics(self) -> CheckpointerStatistics:
        return self._statistics

    def ask(self) -> None:
        """Asks for a save at the next boundary, whatever the settings say."""
        self._is_asked = True

    @property
    def is_stopping(self) -> bool:
        """Whether the run ends at the next boundary."""
        return self._stop_reason is not None

    def stop(self, reason: StopReason) -> None:
        """Asks for a save at the next boundary, and for the end of the run after it."""
        self._stop_reason = self._stop_reason or reason

    def stepped(self, report: StepReport) -> None:
        """Receives the report of each step, before its boundary."""
        self._budget.stepped(report.duration_s)
        if self._settings.checkpoint.keep_best_by is not None and not self._settings.is_best_by_validation:
            self._score = self._number_in(scalars(report.to_json()), f"step {report.step}")

    def go_on(self, start: Boundary) -> None:
        """Notes where a run resumes: scores of open validations will still come."""
        self._store.stand_at(start.next_step)
        if self._settings.is_best_by_validation:
            for version in (start.next_step, *(saved.step for saved in start.validations)):
                self._await_score(version)

    def validated(self, validated: Validated) -> None:
        """Receives each measured version, when its last verdict has come."""
        if self._settings.is_best_by_validation:
            version = validated.report.version
            score = self._number_in(scalars(validated.report.metrics), f"the validation of version {version}")
            self._rating = self._writer.submit(self._rate, version, score)

    def _number_in(self, figures: Mapping[str, float], whose: str) -> float | None:
        """Returns the figure; None if it is missing, which is logged once, or NaN, which cannot be compared."""
        name = str(self._settings.checkpoint.keep_best_by)
        if name not in figures and not self._has_complained:
            self._has_complained = True
            hint = did_you_mean(name, figures, otherwise="")
            end = f"; {hint}" if hint else ""
            logger.warning("%s has no number %r for checkpoint.keep_best_by%s", whose, name, end)
        value = figures.get(name)
        return value if value is not None and math.isfinite(value) else None

    def _await_score(self, version: int) -> None:
        if self._is_measured(version):
            self._store.await_score(version)

    def _is_measured(self, version: int) -> bool:
        validation = self._settings.validation
        return validation is not None and validation.occasions.has(version, self._settings.steps)

    async def __call__(self, boundary: Boundary) -> None:
        is_end = boundary.next_step >= self._settings.steps
        now_s = asyncio.get_running_loop().time()
        if self._budget.is_up(now_s):
            self.stop("max_hours")
        reason = None if is_end else self._stop_reason
        if is_end or reason is not None or self._is_due(boundary.next_step, now_s):
            await self._save(boundary)
        if is_end or reason is not None:
            await self.settle()
        if reason is not None:
            self._statistics = replace(self._statistics, stopped_by=reason)
            raise StoppedEarly(boundary.next_step, reason)

    async def settle(self) -> None:
        """Waits for the save that is under way."""
        for writing in (self._writing, self._rating):
            if writing is not None:
                await asyncio.wrap_future(writing)

    def _is_due(self, step: int, now_s: float) -> bool:
        every, minutes = self._settings.checkpoint.every, self._settings.checkpoint.every_minutes
        is_old = minutes is not None and now_s - self._last_saved_s >= minutes * _S_PER_MINUTE
        is_candidate = self._settings.is_best_by_validation and self._is_measured(step)
        is_trial = self._budget.is_limited and self._writing is None  # to know how long the last one will take
        return self._is_asked or is_old or is_candidate or is_trial or (every is not None and step % every == 0)

    async def _save(self, boundary: Boundary) -> None:
        await self.settle()
        self._is_asked = False
        if self._settings.is_best_by_validation:
            self._await_score(boundary.next_step)
        snapshot = await self._take(boundary)
        self._last_saved_s = asyncio.get_running_loop().time()
        self._writing = self._writer.submit(self._write, snapshot, self._score)

    # -- on the writer's thread --------------------------------------------------------------------------------------

    def _rate(self, version: int, score: float | None) -> None:
        try:
            self._store.rate(version, score)
        except CheckpointError as error:
            logger.warning("a checkpoint may not be found as the best: %s", error)

    def _write(self, snapshot: Snapshot, score: float | None) -> None:
        started_s = time.monotonic()
        step, before = snapshot.boundary.next_step, self._statistics
        try:
            self._flush()
            saved = self._store.save(step, snapshot.write, settings=self._fingerprint, score=score)
        except CheckpointError as error:
            logger.warning("NOT SAVED: %s. The run goes on, with the checkpoints it had before", error)
            self._statistics = replace(before, num_failed=before.num_failed + 1)
            return
        took_s = time.monotonic() - started_s
        self._budget.saved(took_s)
        logger.info("saved %s in %.1f s", saved.path, took_s)
        self._statistics = replace(
            before,
            num_saved=before.num_saved + 1,
            last_step=step,
            longest_save_s=max(before.longest_save_s, took_s),
        )


@contextlib.contextmanager
def saving_on_signal(checkpointer: Checkpointer) -> Iterator[None]:
    """Makes SIGUSR1 ask for a save, where the system has it and this is the main thread."""
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGUSR1, checkpointer.ask)
    except (AttributeError, NotImplementedError, RuntimeError, ValueError):
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGUSR1)
