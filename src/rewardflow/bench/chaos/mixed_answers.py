"""The scenario of mixed answers: thousands of rollouts meet all misbehaviours at several concurrencies.

Always true: the server chooses the misbehaviours of a trial by its seed, and answers about half of the calls honestly.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardflow.bench.chaos.hostile_server import MISBEHAVIOURS, Choose, HostileServer, rollout_of
from rewardflow.bench.chaos.judge_setup import KEY, judge_at, mixture
from rewardflow.bench.chaos.key_echoes import KEY_ECHOES
from rewardflow.bench.chaos.scenario import Scenario, Tried, in_real_time
from rewardflow.bench.chaos.truth_check import (
    LogText,
    check_calls,
    check_secret,
    check_verdicts,
    timed_out,
    verdicts_by_number,
)
from rewardflow.bench.chaos.wire_faults import LEAVES_BYTES
from rewardflow.reward.agent import RewardAgent
from rewardflow.reward.calls.failed_calls import MAX_REJECTIONS
from rewardflow.types import ScoredGroup

MAX_ATTEMPTS = 3

_CONCURRENCIES = (1, 4, 16, 64, 256)
_NUM_ROLLOUTS = 600
_NUM_CHOSEN = 60  # misbehaviours of one trial
_GROUP_SIZE = 4


@dataclass(frozen=True, slots=True)
class _Batch:
    """What a batch of one trial is scored with."""

    count: int
    concurrency: int
    choose: Choose
    structured: str


async def mixed_answers(seed: int, folder: Path, *, judge: Callable[..., Any] = judge_at) -> Tried:
    """Scores one batch with some of the misbehaviours, and compares every verdict with the server's truth."""
    chance = random.Random(seed)
    concurrency = _CONCURRENCIES[seed % len(_CONCURRENCIES)]
    choose = mixture(seed, chance.sample(MISBEHAVIOURS, _NUM_CHOSEN), chance.choice((0.3, 0.5, 0.7)))
    count = _NUM_ROLLOUTS if concurrency > 1 else _NUM_ROLLOUTS // 6
    batch = _Batch(count, concurrency, choose, chance.choice(("auto", "prompt")))
    with LogText():
        server, groups = await _score(seed, folder, batch, judge)
    verdicts, complaints = verdicts_by_number(groups, _GROUP_SIZE)
    may_fail = not LEAVES_BYTES.isdisjoint(server.met)
    too_late = timed_out(folder / "run", _GROUP_SIZE)
    complaints += check_verdicts(server, count, verdicts, may_fail=may_fail, too_late=too_late)
    # A refused schema is left out within the same attempt.
    complaints += check_calls(server, 2 * MAX_ATTEMPTS, MAX_REJECTIONS)
    scored = sum(one.is_scored for one in verdicts.values())
    note = f"{concurrency} at once, {server.num_requests} requests, {scored} of {count} scored"
    return Tried(count, tuple(complaints), note)


async def echoed_keys(seed: int, folder: Path) -> Tried:
    """Scores one batch while the server echoes the client's key, and searches for the key wherever the agent writes."""
    batch = _Batch(_NUM_ROLLOUTS // 3, 16, mixture(seed, KEY_ECHOES, honest_share=0.1), "prompt")
    with LogText() as log:
        _, groups = await _score(seed, folder, batch, judge_at)
    verdicts, complaints = verdicts_by_number(groups, _GROUP_SIZE)
    complaints += check_secret(KEY, verdicts, folder, "\n".join(log.lines))
    return Tried(batch.count, tuple(complaints))


async def _score(
    seed: int, folder: Path, batch: _Batch, judge: Callable[..., Any]
) -> tuple[HostileServer, list[ScoredGroup]]:
    async with (
        HostileServer(seed=seed, choose=batch.choose) as server,
        RewardAgent(
            judge(server.base_url, structured=batch.structured),
            max_concurrency=batch.concurrency,
            max_attempts=MAX_ATTEMPTS,
            timeout_s=2.0 if batch.concurrency > 1 else 0.3,
            backoff_s=0.005,
            max_backoff_s=0.05,
            retry_budget=10.0,
            outage_share=None,
            rpm=None,
            tpm=None,
            journal=folder / "journal.db",
            run_dir=folder / "run",
        ) as agent,
    ):
        rollouts = [rollout_of(number, group_size=_GROUP_SIZE) for number in range(batch.count)]
        return server, await agent.submit(rollouts).all()


MIXED_ANSWERS = Scenario(
    name="mixed-answers",
    promise="every rollout gets exactly one verdict, and every score is the true one",
    unit="rollouts",
    seconds=30.0,
    trial=in_real_time(mixed_answers),
)
ECHOED_KEYS = Scenario(
    name="echoed-keys",
    promise="a key that the service echoes reaches no verdict, file or log",
    unit="rollouts",
    seconds=3.0,
    trial=in_real_time(echoed_keys),
)
