"""How long the connections of an event loop live."""

from __future__ import annotations

import asyncio
import gc
import warnings

from aiohttp import web
from scripted_server import ScriptedServer, raw_server, read_request

from rewardflow.services.http.http_client import HttpClient


def test_a_client_works_again_after_it_was_closed_and_on_another_loop_and_leaves_nothing_open() -> None:
    client = HttpClient()

    async def run() -> None:
        async with ScriptedServer(lambda request: {"n": request.body}) as server:
            for n in range(2):
                assert await client.post_json(server.url, {"n": n}) == {"n": {"n": n}}
                await client.aclose()
        await client.aclose()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(run())
        asyncio.run(run())
        gc.collect()


def test_a_loop_that_ended_without_closing_does_not_stand_in_the_way_of_the_next() -> None:
    client = HttpClient()

    async def run() -> None:
        async with ScriptedServer(lambda request: web.json_response({}, headers={"Connection": "close"})) as server:
            assert await client.post_json(server.url, {}) == {}

    asyncio.run(run())
    asyncio.run(run())
    asyncio.run(client.aclose())


def test_one_run_after_another_without_closing_leaves_nothing_open() -> None:
    client = HttpClient()
    connections: list[object] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:  # keeps the connection open, as servers do
            await read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            connections.append(writer)

    async def run() -> None:
        async with raw_server(serve) as url:
            assert await client.post_json(url, {}) == {}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            asyncio.run(run())
            assert len(client._pools) == 0
        gc.collect()
    assert len(connections) == 3


def test_addresses_of_one_server_share_their_connections() -> None:
    async def run() -> None:
        client = HttpClient()
        pools = await client._pools.of_running_loop()
        first = pools.pool_of("http://one:80/v1/chat/completions")
        assert pools.pool_of("http://one:80/v1/models") is first
        assert pools.pool_of("https://one:80/v1/models") is not first
        await client.aclose()

    asyncio.run(run())
