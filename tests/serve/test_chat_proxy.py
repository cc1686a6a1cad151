"""Own reward code behind the proxy: its calls get limits, retries, a cap and a journal, against the mock judge."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from served import Asker, served

from rewardflow.errors import InvalidInput
from rewardflow.mock_judge import MockJudge, MockJudgeSettings
from rewardflow.reward.limits.run_ledgers import RunLedgers
from rewardflow.serve.chat_proxy import ChatProxy
from rewardflow.serve.settings import ProxySettings

PRICES = {"input_usd_per_million": 1000.0, "output_usd_per_million": 1000.0}


def chat(text: str = "judge this", **more: Any) -> dict[str, Any]:
    return {"model": "mock-judge", "messages": [{"role": "user", "content": text}], "max_tokens": 64, **more}


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
