"""Rollouts that an agent has scored by a reward which asks a scripted server."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

from scripted_server import ScriptedServer

import rewardflow as rf

Reply = Callable[[dict[str, Any]], Any]  # from a request's JSON to an answer's, or to a whole response


def serving(reply: Reply) -> ScriptedServer:
    return ScriptedServer(lambda request: reply(request.body))


def rollouts(*responses: str, **fields: Any) -> list[rf.Rollout]:
    return [
        rf.Rollout(group_id="q", index=i, group_size=len(responses), prompt="2+2?", response=one, **fields)
        for i, one in enumerate(responses)
    ]


def score_from_server(
    server: ScriptedServer, reward: Callable[[str], Any], batch: list[rf.Rollout], **options: Any
) -> tuple[list[rf.Reward], ScriptedServer]:
    """Scores a batch, in real time, with a reward that is built with the server's address."""

    async def run() -> list[rf.Reward]:
        async with server, rf.RewardAgent(reward(server.url), **options) as agent:
            return [verdict for group in await agent.submit(batch).all() for verdict in group.rewards]

    return asyncio.run(run()), server


def score_group_from_server(
    reply: Reply, reward: Callable[[str], Any], *responses: str, **fields: Any
) -> tuple[list[rf.Reward], ScriptedServer]:
    """Scores one group of these responses, with one retry."""
    return score_from_server(serving(reply), reward, rollouts(*responses, **fields), max_attempts=2, backoff_s=0.01)


def assert_travels_after_use(reply: Reply, reward: Callable[[str], Any]) -> None:
    """A reward that was used arrives as it was made, without its connections, and makes its own."""

    async def run() -> None:
        async with serving(reply) as server:
            one = reward(server.url)
            known = await one.compute_score(rollouts("4")[0])
            arrived = pickle.loads(pickle.dumps(one))
            assert arrived == one
            assert "_http" not in vars(arrived)
            assert known.value is not None
            assert (await arrived.compute_score(rollouts("4")[0])).value == known.value
            await one.aclose()
            await arrived.aclose()

    asyncio.run(run())


def paths(server: ScriptedServer) -> list[str]:
    return [request.path for request in server.requests]


def bodies(server: ScriptedServer) -> list[Any]:
    return [request.body for request in server.requests]
