"""What the clients of other trainers do with a verdict, a failure, and a verdict later than their own timeout.

The clients here behave as those of OpenRLHF 0.9.9, slime, miles and NeMo Gym of August 2026: what they send, how long
they wait, how often they try, and what they do when nothing helps. Their times are shortened.
"""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from served import CALLS, GATE, judge, served

import rewardflow as rf

SHORT_S = 0.25  # for OpenRLHF's 180 s, slime's 120 s and miles' 300 s


async def openrlhf_client(
    url: str, query: str, prompt: str, label: Any, *, tries: int = 5, timeout_s: float = 60.0
) -> dict[str, Any]:
    """Posts one query, waits for a limited time, tries five times a second apart, then raises."""
    body = {"query": [query], "prompts": [prompt], "labels": [label]}
    for _ in range(tries):
        try:
            timeout = aiohttp.ClientTimeout(total=timeout_s)
            async with aiohttp.ClientSession(timeout=timeout) as session, session.post(url, json=body) as response:
                response.raise_for_status()
                answer: dict[str, Any] = await response.json()
                return answer
        except (aiohttp.ClientError, TimeoutError):
            await asyncio.sleep(0.01)
    raise RuntimeError("no reward")  # logged; the sample then has no reward, and its trainer raises


async def slime_client(
    url: str, prompt: Any, response: str, label: Any, *, tries: int = 10, timeout_s: float = 60.0
) -> Any:
    """Posts one sample, waits for a limited time, tries ten times with growing pauses, then raises."""
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        for attempt in range(tries):
            try:
                body = {"prompt": prompt, "response": response, "label": label}
                async with session.post(url, json=body) as answer:
                    answer.raise_for_status()
                    return await answer.json()
            except (aiohttp.ClientError, TimeoutError):
                if attempt + 1 == tries:
                    raise
                await asyncio.sleep(0.01)


async def miles_client(url: str, prompt: Any, response: str, label: Any, *, timeout_s: float = 60.0) -> Any:
    """Posts one sample once, waits for a limited time, and raises what goes wrong."""
    body = {"prompt": prompt, "response": response, "label": label}
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(timeout=timeout) as session, session.post(url, json=body) as answer:
        answer.raise_for_status()
        return await answer.json()


async def nemo_gym_agent(url: str, question: Any, answer: str, **row: Any) -> dict[str, Any]:
    """Begins a session, has its model answer, and asks for the reward; any error status ends the rollout."""
    params = {"input": question, "temperature": 1.0}
    for_ever = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(raise_for_status=True, timeout=for_ever) as session:
        body = {"responses_create_params": params, **row}
        async with session.post(f"{url}/seed_session", json=body) as begun:
            assert await begun.json() == {}
        output = [
            {"type": "reasoning", "summary": []},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": answer}]},
        ]
        query = "?failed=row" if row.pop("as_row", False) else ""
        async with session.post(f"{url}/verify{query}", json={**body, "response": {"output": output}}) as verified:
            result: dict[str, Any] = await verified.json()
            return result


def test_the_key_of_slime_holds_the_verdict_also_where_a_component_has_its_name() -> None:
    async def main() -> None:
        parts = [rf.Weighted(judge, name="acc", weight=0.5), rf.Weighted(judge, name="length", weight=2.0)]
        async with served(parts) as asker:
            assert await slime_client(f"{asker.url}/slime?key=acc", "q", "ab", None) == {"acc": 5.0, "length": 2.0}

    asyncio.run(main())


def test_each_client_gets_its_verdict() -> None:
    async def main() -> None:
        async with served() as asker:
            url = asker.url
            answer = await openrlhf_client(f"{url}/openrlhf", "What is 2+2? four", "What is 2+2? ", "4")
            assert (answer["rewards"], answer["scores"]) == ([4.0], [4.0])
            assert await slime_client(f"{url}/slime", "q", "abcde", "l") == 5.0
            assert await slime_client(f"{url}/slime?key=score", [{"role": "user", "content": "q"}], "abc", None) == {
                "score": 3.0
            }
            assert await miles_client(f"{url}/miles", "q", "ab", {"a": 1}) == 2.0
            row = await nemo_gym_agent(url, "2+2?", "four", expected_answer="4", _ng_task_index=7)
            assert (row["reward"], row["expected_answer"], row["_ng_task_index"]) == (4.0, "4", 7)

    asyncio.run(main())


def test_the_reward_sees_prompt_response_and_reference() -> None:
    seen: list[tuple[Any, ...]] = []

    async def compute_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
        seen.append((solution_str, ground_truth, (extra_info or {}).get("level")))
        return 1.0

    async def main() -> None:
        async with served(compute_score) as asker:
            await openrlhf_client(f"{asker.url}/openrlhf", "p r", "p ", "x")
            await openrlhf_client(f"{asker.url}/openrlhf", "<chat>p r", "p ", "x")
            await slime_client(f"{asker.url}/slime", "p", "r", {"a": [1]})
            await nemo_gym_agent(asker.url, [{"role": "user", "content": "p"}], "r", label="y", level=3)

    asyncio.run(main())
    assert seen == [("r", "x", None), ("<chat>p r", "x", None), ("r", {"a": [1]}, None), ("r", "y", 3)]


def test_a_reference_is_the_one_that_was_sent_however_many_digits_it_has() -> None:
    seen: list[Any] = []

    async def compute_score(solution_str: str, ground_truth: Any) -> float:
        seen.append(ground_truth)
        return 1.0

    async def main() -> None:
        async with served(compute_score) as asker:
            for label in (2**64 - 1, -(2**63), str(10**40), 0.12345678901234568, [1e300]):
                await slime_client(f"{asker.url}/slime", "q", "r", label)
            with pytest.raises(aiohttp.ClientResponseError, match="400"):
                await slime_client(f"{asker.url}/slime", "q", "r", 10**40, tries=1)

    asyncio.run(main())
    assert seen == [2**64 - 1, -(2**63), str(10**40), 0.12345678901234568, [1e300]]


def test_a_failure_is_an_error_status_for_every_client_and_costs_one_call_however_often_they_try() -> None:
    async def main() -> None:
        async with served(max_attempts=1) as asker:
            with pytest.raises(RuntimeError, match="no reward"):
                await openrlhf_client(f"{asker.url}/openrlhf", "bad 1", "", None)
            with pytest.raises(aiohttp.ClientResponseError) as refused:
                await slime_client(f"{asker.url}/slime", "q", "bad 2", None)
            assert refused.value.status == 500
            with pytest.raises(aiohttp.ClientResponseError):
                await miles_client(f"{asker.url}/miles", "q", "bad 3", None)
            with pytest.raises(aiohttp.ClientResponseError):
                await nemo_gym_agent(asker.url, "q", "bad 4")
            assert CALLS == {"bad 1": 1, "bad 2": 1, "bad 3": 1, "bad 4": 1}

    asyncio.run(main())


def test_nemo_gym_gets_its_own_word_for_a_failure_if_it_asks_for_it() -> None:
    async def main() -> None:
        async with served(max_attempts=1) as asker:
            row = await nemo_gym_agent(asker.url, "q", "bad", as_row=True)
            assert row["_ng_failure_class"] == "judge_failed"
            assert "cannot be judged" in row["_ng_failure_judge_error"]

    asyncio.run(main())


def test_a_failed_row_of_nemo_gym_is_masked_where_nemo_rl_looks_for_it() -> None:
    async def main() -> None:
        async with served(max_attempts=1) as asker:
            row = await nemo_gym_agent(asker.url, "q", "bad", as_row=True, instance_config={"seed": 1})
            assert (row["mask_sample"], row["failure_kind"]) == (True, "judge_failed")
            assert "cannot be judged" in row["failure_reason"]
            assert row["instance_config"] == {"seed": 1, "mask_sample": True}
            words = ("mask_sample", "failure_kind", "failure_reason", "_ng_failure_class")
            earlier = {name: row[name] for name in words}
            row = await nemo_gym_agent(asker.url, "q", "good", **earlier, instance_config=row["instance_config"])
            assert row["reward"] == 4.0
            assert not earlier.keys() & row.keys()
            assert row["instance_config"] == {"seed": 1}
            made_by_failure = {"mask_sample": True}
            row = await nemo_gym_agent(asker.url, "q", "good", **earlier, instance_config=made_by_failure)
            assert "instance_config" not in row

    asyncio.run(main())


async def late(client: Any) -> Any:
    """Answers when the first try of the client has timed out; returns what the client made of it."""
    asking = asyncio.create_task(client)
    await GATE["started"].wait()
    await asyncio.sleep(1.5 * SHORT_S)  # real time, as the clients have it
    GATE["hold"].set()
    return await asking


def test_a_verdict_later_than_the_clients_timeout_is_got_by_its_next_try_without_a_new_call() -> None:
    """So do OpenRLHF and slime. The tries are many, so that none of them is the last on a busy machine."""

    async def main() -> None:
        async with served() as asker:
            answer = await late(
                openrlhf_client(f"{asker.url}/openrlhf", "hold 1", "", None, tries=1000, timeout_s=SHORT_S)
            )
            assert answer["rewards"] == [6.0]
            assert CALLS == {"hold 1": 1}
        async with served() as asker:
            assert (
                await late(slime_client(f"{asker.url}/slime", "q", "hold 22", None, tries=1000, timeout_s=SHORT_S))
                == 7.0
            )
            assert CALLS == {"hold 22": 1}

    asyncio.run(main())


def test_a_verdict_later_than_the_last_try_is_lost_to_that_sample_and_free_for_the_next_request() -> None:
    """OpenRLHF has no reward for the sample after five tries, slime raises after ten, miles after its only one."""

    async def main() -> None:
        async with served() as asker:
            with pytest.raises(RuntimeError, match="no reward"):
                await openrlhf_client(f"{asker.url}/openrlhf", "hold 1", "", None, timeout_s=0.05)
            with pytest.raises(TimeoutError):
                await slime_client(f"{asker.url}/slime", "q", "hold 22", None, timeout_s=0.05)
            with pytest.raises(TimeoutError):
                await miles_client(f"{asker.url}/miles", "q", "hold 333", None, timeout_s=0.05)
            GATE["hold"].set()
            answer = await openrlhf_client(f"{asker.url}/openrlhf", "hold 1", "", None)
            assert answer["rewards"] == [6.0]
            assert await slime_client(f"{asker.url}/slime", "q", "hold 22", None) == 7.0
            assert await miles_client(f"{asker.url}/miles", "q", "hold 333", None) == 8.0
            assert CALLS == {"hold 1": 1, "hold 22": 1, "hold 333": 1}

    asyncio.run(main())


def test_nemo_gym_waits_for_a_late_verdict_as_long_as_it_takes() -> None:
    async def main() -> None:
        async with served() as asker:
            assert (await late(nemo_gym_agent(asker.url, "q", "hold 1")))["reward"] == 6.0
            assert CALLS == {"hold 1": 1}

    asyncio.run(main())


def test_equal_requests_of_two_runs_are_judged_for_each() -> None:
    async def main() -> None:
        async with served() as asker:
            for run in ("a", "b", "a"):
                assert await slime_client(f"{asker.url}/slime?run={run}", "q", "abc", None) == 3.0
            assert CALLS == {"abc": 2}

    asyncio.run(main())


def test_several_queries_are_answered_whole_or_not_at_all() -> None:
    async def main() -> None:
        async with served(max_attempts=1) as asker:
            _, answer = await asker.post(
                "/openrlhf", {"query": ["a", "bb"], "prompts": ["", ""], "labels": [None, "x"]}
            )
            assert answer["rewards"] == [1.0, 2.0]
            status, answer = await asker.post("/openrlhf", {"query": ["a", "bad"]})
            assert status == 500
            assert "1 of 2 responses were not judged (user_error)" in answer["error"]["message"]
            assert (await asker.post("/openrlhf", {"query": ["a"], "labels": ["x", "y"]}))[0] == 400

    asyncio.run(main())


def test_openrlhf_with_two_addresses_sends_the_second_one_an_empty_part_and_gets_an_empty_answer() -> None:
    async def main() -> None:
        async with served() as asker:
            status, answer = await asker.post("/openrlhf", {"query": [], "prompts": [], "labels": []})
            assert (status, answer) == (200, {"rewards": [], "scores": [], "extra_logs": {}})

    asyncio.run(main())


def test_a_reward_that_judges_whole_groups_refuses_requests_that_have_none() -> None:
    class Relative:
        async def score_group(self, rollouts: Any) -> list[float]:
            return [0.0 for _ in rollouts]

    async def main() -> None:
        async with served(Relative()) as asker:
            status, answer = await asker.post("/slime", {"prompt": "q", "response": "r", "label": None})
            assert status == 400
            assert "judges whole groups" in answer["error"]["message"]

    asyncio.run(main())


def test_nemo_gym_gets_the_figures_it_asks_for_at_the_end() -> None:
    async def main() -> None:
        async with served() as asker:
            rows = [{"_ng_task_index": i % 2, "reward": float(i)} for i in range(4)]
            _, figures = await asker.post("/aggregate_metrics", {"verify_responses": rows})
            assert [one["mean/reward"] for one in figures["group_level_metrics"]] == [1.0, 2.0]
            assert figures["key_metrics"] == {"mean/reward": 1.5}
            failed = {"_ng_task_index": 0, "reward": 0.0, "_ng_failure_class": "judge_failed"}
            masked = {"_ng_task_index": 0, "reward": 0.0, "mask_sample": True}
            assert (await asker.post("/aggregate_metrics", {"verify_responses": [*rows, failed, masked]}))[1] == figures
            assert await asker.get("/reverify_mode") == (200, "stateless")

    asyncio.run(main())


def test_the_step_of_the_header_decides_who_goes_first() -> None:
    order: list[str] = []

    async def note(solution_str: str) -> float:
        if solution_str == "first":
            GATE["started"].set()
            await GATE["hold"].wait()
        order.append(solution_str)
        return 1.0

    async def main() -> None:
        async with served(note, max_concurrency=1) as asker:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(asker.post("/slime", {"prompt": "", "response": "first"}))
                await GATE["started"].wait()
                for text, step in (("late", "9"), ("early", "2")):
                    tasks.create_task(asker.post("/slime", {"prompt": "", "response": text}, X_Rewardflow_Step=step))
                while (await asker.get("/v1/status"))[1]["waiting"] < 3:
                    pass
                GATE["hold"].set()
            assert order == ["first", "early", "late"]
            assert (await asker.post("/slime", {"response": "x"}, X_Rewardflow_Step="soon"))[0] == 400

    asyncio.run(main())
