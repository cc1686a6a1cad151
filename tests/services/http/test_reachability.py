"""Looking for a service: what is odd is told, nobody is stopped, and nothing is asked that costs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from scripted_server import ScriptedServer, raw_server

from rewardflow import clock
from rewardflow.services.http.http_client import HttpClient
from rewardflow.services.http.reachability import check_reachability


def found(look: Any, model: str | None = "m") -> list[str]:
    async def run() -> list[str]:
        async with ScriptedServer(lambda _: {}, look=lambda _: look) as server:
            http = HttpClient()
            try:
                odd = await check_reachability(
                    http, {server.url: f"{server.url}/v1/models"}, {"X-Key": "k"}, model=model
                )
            finally:
                await http.aclose()
            assert [(one.path, one.headers["X-Key"]) for one in server.looks] == [("/v1/models", "k")]
            assert server.requests == []
            return [line.replace(server.url, "URL") for line in odd]

    return asyncio.run(run())


def test_a_server_that_lists_the_model_is_as_it_should_be() -> None:
    assert found({"data": [{"id": "other"}, {"id": "m"}]}) == []


def test_a_model_that_is_not_listed_is_told_with_those_that_are() -> None:
    names = [{"id": name} for name in "abcdefg"]
    assert found({"data": names}) == ["URL does not list the model m; it lists a, b, c, d, e, ..."]
    assert found({"data": names}, model=None) == []


@pytest.mark.parametrize("answer", [{}, [], None, {"data": []}, {"data": "x"}, {"data": [1, {"id": 5}]}])
def test_a_list_of_another_shape_says_nothing(answer: Any) -> None:
    assert found(web.json_response(answer)) == []


@pytest.mark.parametrize("status", [404, 405, 500, 503, 429, 307])
def test_any_answer_is_a_sign_of_life(status: int) -> None:
    assert found(web.Response(status=status)) == []


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_told(status: int) -> None:
    assert found(web.Response(status=status)) == [
        f"URL refused the key (or its absence) with {status} when it was asked what it serves"
    ]


def test_of_several_addresses_only_the_dead_one_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> list[str]:
        async with ScriptedServer(lambda _: {}) as server:
            http = HttpClient()
            try:
                dead = "http://127.0.0.1:9"
                return await check_reachability(http, {server.url: server.url, dead: f"{dead}/v1/models"}, {})
            finally:
                await http.aclose()

    (problem,) = asyncio.run(run())
    assert problem.startswith("the service does not answer yet: no answer from http://127.0.0.1:9/v1/models")
    assert problem in caplog.text


def test_a_server_that_never_answers_is_not_waited_for() -> None:
    async def never(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async def run() -> list[str]:
        async with raw_server(never) as url:
            http = HttpClient()
            try:
                return await check_reachability(http, {url: url}, {})
            finally:
                await http.aclose()

    (problem,) = clock.run(run())
    assert "did not answer within 5 s" in problem
