"""A server over HTTP in this process, and a judge that counts its calls, for tests of `rewardflow serve`."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp

import rewardflow as rf
from rewardflow.reward.agent import RewardAgent
from rewardflow.serve.agent_server import AgentServer
from rewardflow.serve.settings import ServeSettings

CALLS: Counter[str] = Counter()  # outside of the judge: what a function holds is part of its identity
GATE: dict[str, asyncio.Event] = {}


async def judge(solution_str: str, ground_truth: Any = None) -> float:
    """Scores the length of the response; `bad` fails, `hold` waits for `GATE["hold"]` and says that it does."""
    CALLS[solution_str] += 1
    if solution_str.startswith("hold"):
        GATE["started"].set()
        await GATE["hold"].wait()
    if solution_str.startswith("bad"):
        raise ValueError("this response cannot be judged")
    return float(len(solution_str))


@contextlib.asynccontextmanager
async def served(
    reward: Any = judge, *, serve: Mapping[str, Any] | None = None, **options: Any
) -> AsyncIterator[Asker]:
    CALLS.clear()
    GATE.update(hold=asyncio.Event(), started=asyncio.Event())
    settings = ServeSettings.of({"port": 0, **(serve or {})})
    options = {"backoff_s": 0.001, **options}
    async with (
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0)
        ) as session,  # outlives the server, whose last answers the tests read
        AgentServer(
            lambda ledgers: RewardAgent(reward, serves_runs=True, run_ledgers=ledgers, **options), settings
        ) as server,
    ):
        yield Asker(server.url, session)


class Asker:
    """Sends requests to a server, as curl would."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self._session = session

    async def post(self, path: str, body: Any, *, token: str | None = None, **headers: str) -> tuple[int, Any]:
        status, answer, _ = await self.ask("POST", path, body, token=token, **headers)
        return status, answer

    async def get(self, path: str, *, token: str | None = None, **headers: str) -> tuple[int, Any]:
        status, answer, _ = await self.ask("GET", path, None, token=token, **headers)
        return status, answer

    async def ask(
        self, method: str, path: str, body: Any, *, token: str | None = None, **headers: str
    ) -> tuple[int, Any, Mapping[str, str]]:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        data = {"data": body} if isinstance(body, bytes) else {} if body is None else {"json": body}
        async with self._session.request(method, self.url + path, headers=sent, **data) as response:
            is_json = response.content_type == "application/json"
            return response.status, await response.json() if is_json else await response.text(), response.headers


def rollouts(count: int, *, size: int = 1, name: str = "q", **fields: Any) -> list[rf.Rollout]:
    return [
        rf.Rollout(group_id=f"{name}{i // size}", index=i % size, group_size=size, response="x" * (1 + i % 7), **fields)
        for i in range(count)
    ]
