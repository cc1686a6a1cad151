"""The scenario of late replies: a gateway sends a second response on a connection that is idle.

Always true: the second response is sent only while no request waits on the connection. One that arrives after the
connection was used again cannot be told apart in HTTP/1.1, so it is not tried.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from rewardflow.bench.chaos.exchange import Carries, Exchange, Misbehaviour, response
from rewardflow.bench.chaos.hostile_server import HostileServer, rollout_of
from rewardflow.bench.chaos.judge_setup import judge_at, mixture
from rewardflow.bench.chaos.scenario import Scenario, Tried, in_real_time
from rewardflow.bench.chaos.truth_check import LogText, check_verdicts, verdicts_by_number
from rewardflow.reward.agent import RewardAgent
from rewardflow.types import ScoredGroup

_NUM_WAVES = 12
_WAVE_SIZE = 16
_LATE_S = 0.03
_PAUSE_S = 0.1


async def late_second_response(x: Exchange) -> None:
    await x.send(response(x.completion()))
    x.stays_open = True
    if await x.stays_idle(_LATE_S):
        await x.send(response(x.completion(x.verdict(x.decoy))))


async def late_half_response(x: Exchange) -> None:
    await x.send(response(x.completion()))
    x.stays_open = True
    if await x.stays_idle(_LATE_S):
        await x.send(response(x.completion(x.verdict(x.decoy)))[:-7])


async def late_blank_line(x: Exchange) -> None:
    await x.send(response(x.completion()))
    x.stays_open = True
    if await x.stays_idle(_LATE_S):
        await x.send(b"\r\n")


_LATE = tuple(
    Misbehaviour(answer.__name__, Carries.TRUTH, answer)
    for answer in (late_second_response, late_half_response, late_blank_line)
)


async def late_replies(seed: int, folder: Path) -> Tried:
    """Scores in waves with a pause between them, so that connections are idle when the late bytes arrive."""
    choose = mixture(seed, _LATE, honest_share=random.Random(seed).choice((0.0, 0.5, 0.9)))
    groups: list[ScoredGroup] = []
    with LogText():
        async with (
            HostileServer(seed=seed, choose=choose) as server,
            RewardAgent(judge_at(server.base_url), max_concurrency=_WAVE_SIZE, backoff_s=0.005, rpm=None) as agent,
        ):
            for start in range(0, _NUM_WAVES * _WAVE_SIZE, _WAVE_SIZE):
                groups += await agent.submit([rollout_of(start + number) for number in range(_WAVE_SIZE)]).all()
                await asyncio.sleep(_PAUSE_S)
    verdicts, complaints = verdicts_by_number(groups, 1)
    count = _NUM_WAVES * _WAVE_SIZE
    complaints += check_verdicts(server, count, verdicts)
    return Tried(count, tuple(complaints))


LATE_REPLIES = Scenario(
    name="late-replies",
    promise="a second response on an idle connection gives no rollout the score of another",
    unit="rollouts",
    seconds=6.0,
    trial=in_real_time(late_replies),
)
