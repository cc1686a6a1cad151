"""Calls to a real HTTP server on this machine: failures, Retry-After and announced limits.

These run in real time, because sockets do; waits for Retry-After are as short as its format allows.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from client_errors import http_date
from rollouts import numbered

import rewardflow as rf


@contextlib.asynccontextmanager
async def judge_server(*answers: tuple[int, dict[str, str]]) -> AsyncIterator[tuple[str, list[float]]]:
    """Gives these answers (status, headers) in turn, then 200 and a score. Yields its address and when it was asked."""
    asked: list[float] = []

    async def judge(request: web.Request) -> web.Response:
        asked.append(time.monotonic())
        status, headers = answers[len(asked) - 1] if len(asked) <= len(answers) else (200, {})
        if status == 0:
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        return web.json_response({"score": 0.5}, status=status, headers=headers)

    application = web.Application()
    application.router.add_post("/judge", judge)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        yield f"http://127.0.0.1:{port}/judge", asked
    finally:
        await runner.cleanup()


class AiohttpJudge:
    def __init__(self, url: str) -> None:
        self.url = url
        self.session: aiohttp.ClientSession | None = None

    async def compute_score(self, solution_str: str) -> float:
        if self.session is None:
            self.session = aiohttp.ClientSession()
        async with self.session.post(self.url, json={"text": solution_str}) as response:
            rf.report_headers(response.headers)
            response.raise_for_status()
            return float((await response.json())["score"])

    async def aclose(self) -> None:
        if self.session is not None:
            await self.session.close()


class UrllibJudge:
    def __init__(self, url: str) -> None:
        self.url = url

    def compute_score(self, solution_str: str) -> float:
        request = urllib.request.Request(self.url, data=b"{}", method="POST")
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return 0.5 if response.status == 200 else -1.0
        except urllib.error.HTTPError as error:
            error.close()
            raise


def ask(judge: Any, *answers: tuple[int, dict[str, str]], **options: Any) -> tuple[rf.Reward, list[float]]:
    async def main() -> tuple[rf.Reward, list[float]]:
        async with judge_server(*answers) as (url, asked):
            settings: dict[str, Any] = {
                "backoff_s": 0.01,
                "rpm": None,
                "max_concurrency": 2,
                "reward_kwargs": {"url": url},
            }
            async with rf.RewardAgent(judge, **{**settings, **options}) as agent:
                (one,) = await agent.submit(numbered(1)).all()
            return one.rewards[0], asked

    return asyncio.run(main())


JUDGES = [AiohttpJudge, UrllibJudge]


@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_real_answer_that_may_pass_is_asked_again(judge: Any, status: int) -> None:
    verdict, asked = ask(judge, (status, {}), (status, {}))
    assert (verdict.value, verdict.attempts, len(asked)) == (0.5, 3, 3), verdict.error


@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_a_real_answer_that_cannot_pass_is_not_asked_again(judge: Any, status: int) -> None:
    verdict, asked = ask(judge, (status, {}))
    assert (verdict.value, verdict.attempts, len(asked)) == (None, 1, 1)
    assert str(status) in (verdict.error or "")


@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize("status", [429, 503])
def test_a_real_retry_after_in_seconds_is_kept(judge: Any, status: int) -> None:
    verdict, asked = ask(judge, (status, {"Retry-After": "0.3"}))
    assert verdict.value == 0.5
    assert asked[1] - asked[0] >= 0.3


def test_a_real_retry_after_as_a_date_is_kept() -> None:
    until = time.time() + 1.6
    verdict, asked = ask(AiohttpJudge, (429, {"Retry-After": http_date(1.6)}))
    assert verdict.value == 0.5
    assert len(asked) == 2
    assert time.time() >= int(until) - 0.05


@pytest.mark.parametrize("judge", JUDGES)
def test_a_real_connection_that_breaks_is_asked_again(judge: Any) -> None:
    verdict, asked = ask(judge, (0, {}))
    assert (verdict.value, len(asked) >= 2) == (0.5, True), verdict.error


@pytest.mark.parametrize("judge", JUDGES)
def test_a_server_that_is_not_there_is_a_failed_service(judge: Any) -> None:
    async def main() -> rf.Reward:
        async with judge_server() as (url, _):
            pass
        options: dict[str, Any] = {"reward_kwargs": {"url": url}, "backoff_s": 0.01, "max_concurrency": 1}
        async with rf.RewardAgent(judge, max_attempts=2, **options) as agent:
            return (await agent.submit(numbered(1)).all())[0].rewards[0]

    verdict = asyncio.run(main())
    assert (verdict.kind, verdict.attempts) == ("service", 2), verdict.error


def test_announced_limits_of_a_real_server_teach_the_pace() -> None:
    async def main() -> None:
        limits = {"x-ratelimit-limit-requests": "1200", "x-ratelimit-reset-requests": "1s"}
        async with (
            judge_server((200, limits)) as (url, _),
            rf.RewardAgent(AiohttpJudge, reward_kwargs={"url": url}) as agent,
        ):
            await agent.submit(numbered(1)).all()
            assert agent.statistics().accounts[0].governors.pace.rpm == pytest.approx(1200, rel=0.2)

    asyncio.run(main())
