"""Schemathesis sends what the OpenAPI description allows and forbids: every answer is one that it names."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import CHECKS, load_all_checks

from rewardflow.reward.agent import RewardAgent
from rewardflow.serve.agent_server import AgentServer
from rewardflow.serve.openapi import describe
from rewardflow.serve.settings import ServeSettings

load_all_checks()
_CHECKED = CHECKS.get_by_names(
    ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance"]
)
schema = schemathesis.openapi.from_dict(describe())


async def judge(solution_str: str) -> float:
    return float(len(solution_str))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server on a loop of its own thread."""
    loop = asyncio.new_event_loop()
    ready, over = threading.Event(), asyncio.Event()
    urls: list[str] = []

    async def serve() -> None:
        build = lambda ledgers: RewardAgent(judge, serves_runs=True, run_ledgers=ledgers)  # noqa: E731
        async with AgentServer(build, ServeSettings(port=0)) as server:
            urls.append(server.url)
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    ready.wait()
    yield urls[0]
    loop.call_soon_threadsafe(over.set)
    thread.join()
    loop.close()


@schema.parametrize()
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_every_answer_is_one_that_the_description_names(case: schemathesis.Case, url: str) -> None:
    if case.operation.path == "/v1/take":
        return  # waits for verdicts; tests/serve/test_own_protocol.py has it
    case.call_and_validate(base_url=url, checks=_CHECKED)
