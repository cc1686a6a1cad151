"""Writes the files of a verl run's directory: every verdict and call, and in mode `rewardflow` what training did.

Always true: the process that trains reports the verdicts; the calls are those that the job's agent made for any process
of the job; one thread writes `events.jsonl` and `steps.jsonl`. Loaded by verl only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewardflow.adapters.verl.accounting.group_events import GroupEvents
from rewardflow.adapters.verl.accounting.group_report import GroupReport
from rewardflow.adapters.verl.job_agent import HeldOpen, client_of_job, make_run_directory
from rewardflow.adapters.verl.settings import VerlSettings
from rewardflow.errors import AgentHalted
from rewardflow.flow.reports import StepReport
from rewardflow.observe.events import EventSink
from rewardflow.observe.line_file import LineFile
from rewardflow.observe.run_directory import RunDirectory
from rewardflow.reward.blocking import LoopThread
from rewardflow.reward.recorder import Recorder

logger = logging.getLogger(__name__)


class JudgingRecord:
    """Records verdicts and calls while a job trains: `with JudgingRecord.at(settings) as record: ...`."""

    def __init__(self, thread: LoopThread, groups: GroupEvents) -> None:
        self._thread = thread
        self._groups = groups

    @classmethod
    @contextlib.contextmanager
    def at(cls, settings: VerlSettings) -> Iterator[JudgingRecord]:
        """Opens the files. Everything is on disk when the block ends."""
        make_run_directory(settings)
        with LoopThread() as thread:
            events = HeldOpen(thread, _recording(settings))
            try:
                yield cls(thread, events.value)
            finally:
                try:
                    events.close()
                except AgentHalted as error:  # the callers of the agent raise it
                    logger.warning("the record of this run ends before the run does: %s", error)

    def left(self, groups: Sequence[GroupReport]) -> None:
        """Records groups that were trained or dropped. Any thread may call it."""
        reports = tuple(groups)
        self._thread.call_soon(lambda: self._groups.left(reports))


@contextlib.asynccontextmanager
async def _recording(settings: VerlSettings) -> AsyncIterator[GroupEvents]:
    """Connects to the job's agent as a client that asks nothing and receives the events of all calls."""
    assert settings.run_dir is not None
    recorder = Recorder(settings.run_dir, asyncio.get_running_loop())
    try:
        groups = GroupEvents(recorder)
        async with client_of_job(settings, sink=groups):
            yield groups
    finally:
        await recorder.aclose()


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files that trainer mode `rewardflow` writes, open."""

    judging: JudgingRecord
    metrics: LineFile[Mapping[str, Any]]
    devices: EventSink

    @classmethod
    @contextlib.contextmanager
    def at(cls, settings: VerlSettings) -> Iterator[RunFiles]:
        with JudgingRecord.at(settings) as judging:
            directory = RunDirectory.open(str(settings.run_dir))
            with directory.open_metrics() as metrics, directory.open_device_events() as devices:
                yield cls(judging, metrics, devices)

    def step_ended(self, report: StepReport, groups: Sequence[GroupReport]) -> None:
        self.judging.left(groups)
        self.metrics.append(report.to_json())
