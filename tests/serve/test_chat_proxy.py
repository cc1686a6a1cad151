"""Own reward code behind the proxy: its calls get limits, retries, a cap and a journal, against the mock judge."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from served import Asker, served

from rewardflow.errors import InvalidInput
from rewardflow.mock_judge import MockJudge, MockJudgeSettings
from rewardflow.reward.limits.run_ledgers import RunLedgers
from rewardflow.serve.chat_proxy import ChatProxy
from rewardflow.serve.settings import ProxySettings

PRICES = {"input_usd_per_million": 1000.0, "output_usd_per_million": 1000.0}


def chat(text: str = "judge this", **more: Any) -> dict[str, Any]:
    return {"model": "mock-judge", "messages": [{"role": "user", "content": text}], "max_tokens": 64, **more}


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@contextlib.asynccontextmanager
async def proxied(
    *, limits: dict[str, Any] | None = None, jobs: dict[str, Any] | None = None, prices: bool = True, **judge: Any
) -> AsyncIterator[tuple[Asker, MockJudge]]:
    async with MockJudge(MockJudgeSettings(port=0, **{"latency": "constant:0", **judge})) as upstream:
        proxy = {
            "base_url": upstream.base_url,
            "limits": {"backoff_s": 0.001, "max_backoff_s": 0.002, **(limits or {})},
            **(PRICES if prices else {}),
        }
        async with served(serve={"proxy": proxy, **(jobs or {})}) as asker:
            yield asker, upstream


def calls_of(upstream: MockJudge) -> int:
    return sum(upstream.statistics().to_json()["outcomes"].values())


def test_an_answer_comes_back_as_the_service_gave_it_with_its_cost() -> None:
    async def main() -> None:
        async with proxied() as (asker, _):
            status, answer, headers = await asker.ask("POST", "/v1/chat/completions", chat())
            assert status == 200
            assert answer["object"] == "chat.completion"
            assert answer["choices"][0]["message"]["content"]
            cost_usd = sum(answer["usage"][name] for name in ("prompt_tokens", "completion_tokens")) / 1000
            assert float(headers["X-Rewardflow-Cost-Usd"]) == pytest.approx(cost_usd)
            _, spending = await asker.get("/v1/spending")
            assert spending["spent_usd"] == pytest.approx(cost_usd)

    asyncio.run(main())


def test_with_temperature_0_a_repeat_needs_no_call_and_otherwise_each_is_a_call_of_its_own() -> None:
    async def main() -> None:
        async with proxied() as (asker, upstream):
            for _ in range(3):
                assert (await asker.post("/v1/chat/completions", chat(temperature=0)))[0] == 200
            assert calls_of(upstream) == 1
            for _ in range(3):
                assert (await asker.post("/v1/chat/completions", chat(temperature=1)))[0] == 200
            assert calls_of(upstream) == 4
            for _ in range(3):
                status, _ = await asker.post("/v1/chat/completions", chat(temperature=1), Idempotency_Key="k")
                assert status == 200
            assert calls_of(upstream) == 5

    asyncio.run(main())


def test_the_journal_keeps_answers_of_temperature_0_over_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        limits = {"journal": str(tmp_path / "chat.db")}
        async with proxied(limits=limits) as (asker, _):
            _, first = await asker.post("/v1/chat/completions", chat(temperature=0))
        async with proxied(limits=limits) as (asker, upstream):
            assert (await asker.post("/v1/chat/completions", chat(temperature=0)))[1] == first
            assert calls_of(upstream) == 0

    asyncio.run(main())


def test_faults_of_the_service_are_retried_and_what_stays_broken_is_an_error_that_may_be_asked_again() -> None:
    async def main() -> None:
        async with proxied(
            faults={"500": 0.5}, limits={"max_attempts": 50, "retry_budget": 50, "outage_share": None}
        ) as (asker, _):
            for number in range(8):
                assert (await asker.post("/v1/chat/completions", chat(f"{number}")))[0] == 200
        async with proxied(faults={"500": 1.0}, limits={"max_attempts": 1, "outage_share": None}) as (asker, upstream):
            for count in (1, 2):
                status, answer = await asker.post("/v1/chat/completions", chat(temperature=0))
                assert status == 502
                assert "choices" not in answer
                assert calls_of(upstream) == count

    asyncio.run(main())


def test_a_request_that_the_service_refuses_is_refused_with_its_status() -> None:
    async def main() -> None:
        async with proxied(takes_schema=False) as (asker, _):
            shape = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": {"type": "object"}}}
            status, answer = await asker.post("/v1/chat/completions", chat(response_format=shape))
            assert (status, answer["error"]["type"]) == (400, "invalid_request_error")

    asyncio.run(main())


def test_a_job_keeps_its_cap_and_the_other_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("A_TOKEN", "a" * 20)
    monkeypatch.setenv("B_TOKEN", "b" * 20)
    jobs = {"jobs": {"a": {"token_env": "A_TOKEN", "max_cost_usd": 1.0}, "b": {"token_env": "B_TOKEN"}}}

    async def main() -> None:
        async with proxied(jobs=jobs) as (asker, _):
            statuses = [
                (await asker.post("/v1/chat/completions", chat(f"{number}"), token="a" * 20))[0] for number in range(60)
            ]
            assert statuses[0] == 200
            assert statuses[-1] == 402
            _, spending = await asker.get("/v1/spending", token="a" * 20)
            assert 0 < spending["spent_usd"] <= spending["cap_usd"] == 1.0
            assert (await asker.post("/v1/chat/completions", chat("one more"), token="b" * 20))[0] == 200

    asyncio.run(main())


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ({"model": "m"}, "an object with `messages`"),
        ({"messages": [{}]}, "model must be a name"),
        ({"model": "m", "messages": ["hi"]}, "messages must be objects"),
        (chat(tools=nested(250)), "nested at most 200 deep"),
        (chat(stream=True), "does not stream"),
    ],
)
def test_a_request_that_cannot_be_forwarded_is_400_with_the_rule(body: Any, rule: str) -> None:
    async def main() -> None:
        async with proxied() as (asker, upstream):
            status, answer = await asker.post("/v1/chat/completions", body)
            assert status == 400
            assert rule in answer["error"]["message"]
            assert calls_of(upstream) == 0

    asyncio.run(main())


def test_without_a_proxy_there_is_none_and_settings_that_the_server_makes_are_refused() -> None:
    async def main() -> None:
        async with served() as asker:
            assert (await asker.post("/v1/chat/completions", chat()))[0] == 404

    asyncio.run(main())
    with pytest.raises(InvalidInput, match=r"proxy\.limits takes no 'reuse'"):
        ChatProxy(ProxySettings(base_url="http://127.0.0.1:1", limits={"reuse": "content"}), RunLedgers())


class HeldService:
    """A service that answers its calls in the order in which they came, as many as `release` says."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._answers = asyncio.Semaphore(0)
        self.came = asyncio.Condition()
        self.hangs_once: set[str] = set()  # texts whose first call is never answered

    async def answer(self, request: web.Request) -> web.Response:
        text = (await request.json())["messages"][0]["content"]
        is_first = text not in self.asked
        async with self.came:
            self.asked.append(text)
            self.came.notify_all()
        if is_first and text in self.hangs_once:
            await asyncio.Event().wait()
        await self._answers.acquire()
        message = {"role": "assistant", "content": "1"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1}
        return web.json_response({"object": "chat.completion", "choices": [{"message": message}], "usage": usage})

    def release(self, count: int) -> None:
        for _ in range(count):
            self._answers.release()

    async def wait_until_asked(self, count: int) -> None:
        async with self.came:
            await self.came.wait_for(lambda: len(self.asked) >= count)


@contextlib.asynccontextmanager
async def held(serve: dict[str, Any] | None = None, **limits: Any) -> AsyncIterator[tuple[Asker, HeldService]]:
    service = HeldService()
    application = web.Application()
    application.router.add_post("/v1/chat/completions", service.answer)
    runner = web.AppRunner(application, handler_cancellation=True)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        proxy = {"base_url": f"http://127.0.0.1:{runner.addresses[0][1]}/v1", "limits": limits}
        async with served(serve={"proxy": proxy, **(serve or {})}) as asker:
            yield asker, service
    finally:
        await runner.cleanup()


async def ask(asker: Asker, text: str, **headers: str) -> int:
    return (await asker.post("/v1/chat/completions", chat(text, temperature=1), **headers))[0]


async def wait_until_queued(asker: Asker, count: int) -> None:
    """Returns when so many calls wait for a slot of the proxy's."""
    while True:
        _, metrics = await asker.get("/metrics", token="c" * 20)
        (line,) = [one for one in metrics.splitlines() if one.startswith('rewardflow_calls_waiting{agent="proxy"')]
        if float(line.rpartition(" ")[2]) >= count:
            return


TOKENS = {"A_TOKEN": "a" * 20, "B_TOKEN": "b" * 20, "ALL_TOKEN": "c" * 20}
TWO_JOBS: dict[str, Any] = {
    "token_env": "ALL_TOKEN",
    "jobs": {"a": {"token_env": "A_TOKEN", "share": 3}, "b": {"token_env": "B_TOKEN"}},
}


def test_two_jobs_share_the_slots_of_the_proxy_by_their_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, token in TOKENS.items():
        monkeypatch.setenv(name, token)

    async def main() -> list[str]:
        async with held(TWO_JOBS, max_concurrency=4, rpm=None) as (asker, service), asyncio.TaskGroup() as tasks:
            for number in range(40):
                tasks.create_task(ask(asker, f"a{number}", token="a" * 20))
                tasks.create_task(ask(asker, f"b{number}", token="b" * 20))
            await wait_until_queued(asker, 76)
            for num_asked in range(5, 81):
                service.release(1)
                await service.wait_until_asked(num_asked)
            service.release(4)
            return service.asked

    while_both_have_work = main_of(main)[8:48]
    assert sum(text.startswith("a") for text in while_both_have_work) == 30  # of 40


def test_calls_of_the_earlier_step_go_first_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, token in TOKENS.items():
        monkeypatch.setenv(name, token)

    async def main() -> list[str]:
        async with held(TWO_JOBS, max_concurrency=1, rpm=None) as (asker, service), asyncio.TaskGroup() as tasks:
            tasks.create_task(ask(asker, "first", token="a" * 20))
            await service.wait_until_asked(1)
            for count, step in enumerate((7, 3, 5), start=1):
                tasks.create_task(ask(asker, f"step {step}", token="a" * 20, X_Rewardflow_Step=str(step)))
                await wait_until_queued(asker, count)
            service.release(4)
            await service.wait_until_asked(4)
            return service.asked

    assert main_of(main) == ["first", "step 3", "step 5", "step 7"]


def test_a_call_that_hangs_is_asked_again_by_a_hedge() -> None:
    async def main() -> list[str]:
        limits = {"hedge_quantile": 0.5, "hedge_share": 1.0, "retry_budget": 1.0, "timeout_s": None}
        async with held(max_concurrency=8, rpm=None, **limits) as (asker, service):
            service.release(21)
            for number in range(20):  # after which it is known how long an answer takes
                assert await ask(asker, f"quick {number}") == 200
            service.hangs_once.add("slow")
            assert await ask(asker, "slow") == 200
            return service.asked

    assert main_of(main).count("slow") == 2


def main_of(main: Callable[[], Coroutine[Any, Any, list[str]]]) -> list[str]:
    return asyncio.run(asyncio.wait_for(main(), 120))
