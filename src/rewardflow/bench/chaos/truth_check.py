"""Compares verdicts with what the hostile server knows.

Always true: a complaint names one broken promise and the rollout, so that its trial can be repeated by its seed.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path

from rewardflow.bench.chaos.exchange import SCALE
from rewardflow.bench.chaos.hostile_server import HostileServer, Told
from rewardflow.bench.chaos.status_faults import RATE_LIMITED
from rewardflow.observe.events import CallEnded
from rewardflow.observe.run_directory import read_events
from rewardflow.types import Reward, ScoredGroup


def verdicts_by_number(groups: Iterable[ScoredGroup], group_size: int) -> tuple[dict[int, Reward], list[str]]:
    """Returns the verdict of each rollout, and a complaint for each rollout that has several."""
    pairs = [
        (_number(group.group_id, rollout.index, group_size), reward)
        for group in groups
        for rollout, reward in zip(group.rollouts, group.rewards, strict=True)
    ]
    counts = Counter(number for number, _ in pairs)
    return dict(pairs), [f"rollout {number} has {count} verdicts" for number, count in counts.items() if count > 1]


def timed_out(run_dir: Path, group_size: int) -> set[int]:
    """Returns the rollouts of which a call took too long, as the record of the agent's run tells."""
    return {
        _number(event.group_id, event.index, group_size)
        for event in read_events(run_dir)
        if isinstance(event, CallEnded) and event.outcome == "timeout"
    }


def check_verdicts(
    server: HostileServer,
    count: int,
    verdicts: Mapping[int, Reward],
    *,
    may_fail: bool = False,
    too_late: Container[int] = (),
) -> Iterator[str]:
    """Yields a complaint for each rollout without verdict, with an invented score, or with a true score refused.

    `may_fail` allows the last: a killed process may take a score with it, and a client may distrust a connection. It is
    allowed for rollouts in `too_late` too: on a busy machine the truth may come when the client no longer waits for it.
    """
    for number in range(count):
        verdict, told = verdicts.get(number), server.told.get(number, Told())
        met = f"after {', '.join(told.names) or 'no call'}"
        if verdict is None:
            yield f"rollout {number} has no verdict {met}"
        elif verdict.value is not None:
            if round(verdict.value * SCALE, 3) != server.truth_of(number):
                yield f"rollout {number} got {verdict.value * SCALE:.0f}, the truth is {server.truth_of(number)}, {met}"
            elif not told.was_told:
                yield f"rollout {number} has a score that nobody told {met}"
        elif told.num_told and not may_fail and verdict.kind != "timeout" and number not in too_late:
            yield f"rollout {number} failed ({verdict.kind}: {verdict.error}) {met}"


def _number(group_id: str, index: int, group_size: int) -> int:
    return int(group_id.removeprefix("group-")) * group_size + index


def check_calls(server: HostileServer, max_calls: int, max_refused: int) -> Iterator[str]:
    """Yields a complaint for each rollout that was asked about too often; calls answered 429 count apart."""
    for number, told in server.told.items():
        num_refused = sum(name in RATE_LIMITED for name in told.names)
        if told.num_calls - num_refused > max_calls or num_refused > max_refused:
            asked = f"was asked about {told.num_calls} times, {num_refused} of them answered 429"
            yield f"rollout {number} {asked}; allowed are {max_calls} others and {max_refused} of these"


def check_secret(secret: str, verdicts: Mapping[int, Reward], folder: Path, log: str) -> Iterator[str]:
    """Yields a complaint for each place where a secret can be read: verdicts, files, log."""
    for number, verdict in verdicts.items():
        if secret in str(dataclasses.asdict(verdict)):  # its own text is short
            yield f"the verdict of rollout {number} holds the key"
    for file in sorted(folder.rglob("*")):
        if file.is_file() and secret.encode() in file.read_bytes():
            yield f"the file {file.name} holds the key"
    if secret in log:
        yield "the log holds the key"


class LogText(logging.Handler):
    """Collects the log of a trial as text, and keeps it from the screen."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(message)s"))
        self.lines: list[str] = []
        self._logger = logging.getLogger("rewardflow")
        self._propagated = self._logger.propagate

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    def __enter__(self) -> LogText:
        self._logger.addHandler(self)
        self._logger.propagate = False
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = self._propagated
