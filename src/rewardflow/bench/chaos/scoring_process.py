"""Scores rollouts in a process of its own, which the campaign kills, starves of disk space, or starts twice.

Run as `python -m rewardflow.bench.chaos.scoring_process ORDER`. Always true: what the process reached is one JSON
object on its standard output, which no limit on file sizes applies to; if it ended in an error, the object names it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import resource
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from rewardflow.bench.chaos.hostile_server import rollout_of
from rewardflow.bench.chaos.judge_setup import judge_at
from rewardflow.bench.chaos.truth_check import verdicts_by_number
from rewardflow.errors import RewardflowError
from rewardflow.reward.agent import RewardAgent
from rewardflow.types import EMPTY, Reward, ScoredGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a scoring process does. `options` are the agent's."""

    base_url: str
    count: int
    options: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    max_file_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """What a scoring process printed. A process that was killed reached nothing."""

    verdicts: Mapping[int, Reward] = field(default_factory=dict)
    error: str = ""  # the name of the error's class
    message: str = ""


class ScoringProcess:
    """A running process that can be killed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def wait(self) -> Reached:
        printed, _ = await self._process.communicate()
        return _read(printed)


@contextlib.asynccontextmanager
async def scoring_process(order: Order) -> AsyncIterator[ScoringProcess]:
    """Starts a process that has ended when the block has."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        __name__,
        orjson.dumps(dataclasses.asdict(order)).decode(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield ScoringProcess(process)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _read(printed: bytes) -> Reached:
    if not printed:
        return Reached()
    found = orjson.loads(printed)
    return Reached(
        verdicts={number: Reward(value=value, kind=kind) for number, value, kind in found["verdicts"]},
        error=found["error"],
        message=found["message"],
    )


async def _score(order: Order) -> Reached:
    rollouts = [rollout_of(number) for number in range(order.count)]
    try:
        async with RewardAgent(judge_at(order.base_url), **order.options) as agent:
            groups = await agent.submit(rollouts).all()
    except RewardflowError as error:
        return Reached(verdicts=_verdicts(getattr(error, "groups", ())), error=type(error).__name__, message=str(error))
    return Reached(verdicts=_verdicts(groups))


def _verdicts(groups: Iterable[ScoredGroup]) -> dict[int, Reward]:
    return verdicts_by_number(groups, group_size=1)[0]


def main() -> None:
    order = Order(**orjson.loads(sys.argv[1]))
    logging.getLogger("rewardflow").addHandler(logging.NullHandler())
    if order.max_file_bytes is not None:  # Python ignores SIGXFSZ, so that writing more raises an error
        resource.setrlimit(resource.RLIMIT_FSIZE, (order.max_file_bytes, order.max_file_bytes))
    reached = asyncio.run(_score(order))
    rows = [(number, verdict.value, verdict.kind) for number, verdict in reached.verdicts.items()]
    shown = {"verdicts": rows, "error": reached.error, "message": reached.message}
    sys.stdout.buffer.write(orjson.dumps(shown))


if __name__ == "__main__":
    main()
