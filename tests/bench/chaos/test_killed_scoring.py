"""A scoring process that is killed loses nothing, and what it does is told by its output."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from rewardflow.bench.chaos.exchange import SCALE
from rewardflow.bench.chaos.hostile_server import HostileServer
from rewardflow.bench.chaos.killed_scoring import live_until_done, options_of
from rewardflow.bench.chaos.scoring_process import Order


async def lives(folder: Path, max_kills: int) -> None:
    async with HostileServer(seed=2, delay_s=0.01) as server:
        order = Order(base_url=server.base_url, count=40, options=options_of(folder, 4))
        result = await live_until_done(server, order, random.Random(1), max_kills=max_kills)
    assert result.num_kills == max_kills
    assert result.reached.error == ""
    assert {number: round(verdict.value * SCALE) for number, verdict in result.reached.verdicts.items()} == {
        number: server.truth_of(number) for number in range(40)
    }
    assert 40 <= server.num_requests <= 40 + 8 * max_kills


def test_a_process_that_is_killed_once_finishes_in_its_second_life(tmp_path: Path) -> None:
    asyncio.run(lives(tmp_path, max_kills=1))
