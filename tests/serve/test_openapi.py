"""The description of the server names every route and every field."""

from __future__ import annotations

import asyncio

from served import served

from rewardflow.serve.openapi import describe


def test_every_route_is_described_and_every_description_is_a_route() -> None:
    async def main() -> None:
        async with served() as asker:
            status, text = await asker.get("/openapi.json")
            assert (status, text["paths"].keys()) == (200, describe()["paths"].keys())
            for path, operations in text["paths"].items():
                for method in operations:
                    status, answer, _ = await asker.ask(method.upper(), path, {} if method == "post" else None)
                    assert status != 405
                    assert not (status == 404 and "proxy" not in str(answer)), path
            assert (await asker.get("/v1/nothing"))[0] == 404

    asyncio.run(main())
