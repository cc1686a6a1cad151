"""The files of a verl run's directory: every verdict, every single call, and in our mode what training did.

Always true: verdicts are told by whoever trains; the calls are those that the job's agent made, whoever of the job's
processes asked; `events.jsonl` and `steps.jsonl` are written by one thread. Loaded by verl only.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewardflow.adapters.verl.job_agent import client_of_job, make_room
from rewardflow.adapters.verl.judged_groups import JudgedGroups
from rewardflow.adapters.verl.settings import VerlSettings
from rewardflow.adapters.verl.training.group_board import GroupReport
from rewardflow.errors import AgentHalted
from rewardflow.flow.reports import StepReport
from rewardflow.observe.events import EventSink
from rewardflow.observe.line_file import LineFile
from rewardflow.observe.run_directory import RunDirectory
from rewardflow.reward.blocking import LoopThread
from rewardflow.reward.recorder import Recorder

logger = logging.getLogger(__name__)


class JudgingRecord:
    """For the time that a job trains: `with JudgingRecord.at(settings) as record: ...`."""

    def __init__(self, thread: LoopThread, groups: JudgedGroups) -> None:
        self._thread = thread
        self._groups = groups

    @classmethod
    @contextlib.contextmanager
    def at(cls, settings: VerlSettings) -> Iterator[JudgingRecord]:
        """A client of the job's agent that asks nothing, and listens."""
        make_room(settings)
        opened: concurrent.futures.Future[Any] = concurrent.futures.Future()
        is_over = asyncio.Event()
        with LoopThread() as thread:
            held: concurrent.futures.Future[Any] = thread.start(_listen(settings, opened, is_over))
            concurrent.futures.wait((opened, held), return_when=concurrent.futures.FIRST_COMPLETED)
            if not opened.done():
                held.result()  # raises why
            try:
                yield cls(thread, opened.result())
            finally:
                thread.call_soon(is_over.set)
                _wait_for(held)

    def left(self, groups: Sequence[GroupReport]) -> None:
        """From any thread."""
        told = tuple(groups)
        self._thread.call_soon(lambda: self._groups.left(told))


async def _listen(settings: VerlSettings, opened: concurrent.futures.Future[Any], is_over: asyncio.Event) -> None:
    assert settings.run_dir is not None
    recorder = Recorder(settings.run_dir, asyncio.get_running_loop())
    try:
        groups = JudgedGroups(recorder)
        async with client_of_job(settings, sink=groups):
            opened.set_result(groups)
            await is_over.wait()
    finally:
        await recorder.aclose()


def _wait_for(held: concurrent.futures.Future[Any]) -> None:
    """Until everything is on disk. That the agent gave up is told by those who asked it."""
    try:
        held.result()
    except AgentHalted as error:
        logger.warning("the record of this run ends before the run does: %s", error)


@dataclass(frozen=True, slots=True)
class RunFiles:
    """What trainer mode `rewardflow` writes, open for writing."""

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
