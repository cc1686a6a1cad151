"""The mock judge's batches, asked by a client of another make: forms by aiohttp, pages by hand."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp

from rewardflow.mock_judge import MockJudge, MockJudgeSettings

BODY = {"model": "m", "messages": [{"role": "user", "content": "Is it right?"}], "max_tokens": 200}


async def upload(session: aiohttp.ClientSession, judge: MockJudge, count: int) -> dict[str, Any]:
    lines = "".join(
        json.dumps({"custom_id": f"r{i}", "method": "POST", "url": "/v1/chat/completions", "body": BODY}) + "\n"
        for i in range(count)
    )
    form = aiohttp.FormData()
    form.add_field("purpose", "batch")
    form.add_field("file", lines.encode(), filename="in.jsonl")
    async with session.post(f"{judge.base_url}/files", data=form) as response:
        file = await response.json()
    order = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    async with session.post(f"{judge.base_url}/batches", json={**order, "metadata": {"who": "me"}}) as response:
        assert response.status == 200
        created: dict[str, Any] = await response.json()
    return created


async def get(session: aiohttp.ClientSession, url: str) -> Any:
    async with session.get(url) as response:
        return (
            await response.json()
            if response.content_type == "application/json"
            else (await response.text()).split("\n")
        )


def test_openais_batch_runs_then_has_a_file_of_results_and_is_listed_with_its_metadata() -> None:
    async def run() -> None:
        async with (
            MockJudge(MockJudgeSettings(batch_latency="constant:3600")) as judge,
            aiohttp.ClientSession() as session,
        ):
            created = await upload(session, judge, 3)
            assert created["status"] == "in_progress"
            assert judge.statistics().calls == 0  # judged when it is over
            judge.end_batches()
            done = await get(session, f"{judge.base_url}/batches/{created['id']}")
            assert (done["status"], done["error_file_id"]) == ("completed", None)
            lines = await get(session, f"{judge.base_url}/files/{done['output_file_id']}/content")
            results = [json.loads(line) for line in lines if line]
            assert [one["custom_id"] for one in results] == ["r0", "r1", "r2"]
            assert {one["response"]["status_code"] for one in results} == {200}
            await upload(session, judge, 1)
            listed = await get(session, f"{judge.base_url}/batches?limit=1")
            assert (len(listed["data"]), listed["has_more"]) == (1, True)
            rest = await get(session, f"{judge.base_url}/batches?limit=1&after={listed['data'][0]['id']}")
            assert (rest["data"][0]["id"], rest["data"][0]["metadata"]) == (created["id"], {"who": "me"})

    asyncio.run(run())


def test_anthropics_batch_gives_results_when_it_has_ended_and_what_was_cancelled_is_not_judged() -> None:
    async def run() -> None:
        async with (
            MockJudge(MockJudgeSettings(batch_latency="constant:3600")) as judge,
            aiohttp.ClientSession() as session,
        ):
            url = f"{judge.base_url}/messages/batches"
            requests = [{"custom_id": f"r{i}", "params": BODY} for i in range(4)]
            async with session.post(url, json={"requests": requests}) as response:
                batch = await response.json()
            assert batch["request_counts"]["processing"] == 4
            async with session.get(f"{url}/{batch['id']}/results") as response:
                assert response.status == 404
            async with session.post(f"{url}/{batch['id']}/cancel") as response:
                assert (await response.json())["processing_status"] == "ended"
            results = [json.loads(line) for line in await get(session, f"{url}/{batch['id']}/results") if line]
            assert [one["result"]["type"] for one in results] == ["canceled"] * 4
            assert judge.statistics().calls == 0
            async with session.post(
                url, json={"requests": [{"custom_id": "x", "params": {"messages": []}}]}
            ) as response:
                assert response.status == 400
            async with session.get(f"{url}/nothing") as response:
                assert response.status == 404

    asyncio.run(run())
