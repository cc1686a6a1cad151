"""Runs a mock judge in a process of its own, so that its work costs the caller's process nothing.

Always true: the judge's process has ended when the `with` block has.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

from rewardflow.mock_judge.judge import MockJudge
from rewardflow.mock_judge.request_counts import MockJudgeStatistics
from rewardflow.mock_judge.settings import MockJudgeSettings


class JudgeProcess:
    """A mock judge in another process, with a pipe as its only connection besides HTTP."""

    def __init__(self, base_url: str, pipe: Connection) -> None:
        self.base_url = base_url
        self._pipe = pipe

    def statistics(self) -> MockJudgeStatistics:
        self._pipe.send("statistics")
        statistics: MockJudgeStatistics = self._pipe.recv()
        return statistics


@contextlib.contextmanager
def judge_process(**settings: Any) -> Iterator[JudgeProcess]:
    """Starts a judge process that ends with the block, or with this process."""
    MockJudgeSettings(**settings)  # raises for a wrong setting here, not in the other process
    context = multiprocessing.get_context("spawn")  # never fork: the caller may have threads
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(settings, theirs), name="mock-judge", daemon=True)
    process.start()
    theirs.close()
    try:
        yield JudgeProcess(ours.recv(), ours)
    finally:
        ours.close()
        process.join()


def _serve(settings: Mapping[str, Any], pipe: Connection) -> None:
    """Serves until the other end of the pipe closes. Ignores Ctrl-C: the parent process handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with MockJudge(MockJudgeSettings(**settings)) as judge, contextlib.suppress(EOFError):
        pipe.send(judge.base_url)
        while pipe.recv():
            pipe.send(judge.statistics())
