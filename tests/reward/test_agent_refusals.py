"""What the agent refuses: rewards, settings, rollouts and journals, before anything is sent."""

from __future__ import annotations

import asyncio
import math
import resource
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from agent_at_work import left_over
from rollouts import group
from scoring import score_groups, values
from simple_rewards import (
    PlainJudge,
    async_number,
    number,
)

import rewardflow as rf
from rewardflow import clock
from rewardflow.errors import JournalLocked, JournalWriteFailed, NewerJournal, NotAJournal

# -- rewards and settings ----------------------------------------------------------------------------------------------


def refused(reward: Any, batch: Sequence[rf.Rollout] = (), **options: Any) -> str:
    """What the error says; nothing may have been sent."""
    with pytest.raises(rf.RewardflowError) as caught:
        score_groups(reward, batch, **options)
    return str(caught.value)


def test_a_missing_file_is_named() -> None:
    assert "/no/such/judge.py" in refused("/no/such/judge.py:compute_score")


def test_a_name_that_is_not_there_is_refused_with_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text("def compute_score(solution_str):\n    return 1.0\n")
    message = refused(f"{tmp_path}/judge.py:compute_scores")
    assert "'compute_scores'" in message
    assert "it has compute_score" in message


def test_a_class_that_cannot_be_built_is_refused_with_what_it_raised() -> None:
    class Judge(PlainJudge):
        def __init__(self) -> None:
            raise OSError("no API key")

    assert "no API key" in refused(Judge)


def test_a_signature_that_does_not_fit_is_refused_with_the_parameter_that_nothing_fills() -> None:
    def reward(solution_str: str, rubric: str) -> float:
        return 1.0

    assert "rubric" in refused(reward)
    assert "rubrik" in refused(reward, reward_kwargs={"rubric": "x", "rubrik": "y"})


@pytest.mark.parametrize("options", [{"workers": "process"}, {"max_concurrency": 2000}])
def test_what_cannot_travel_to_processes_is_refused_by_name(options: dict[str, Any]) -> None:
    lock = threading.Lock()

    def holds_a_lock(solution_str: str) -> float:
        with lock:
            return 1.0

    assert "holds_a_lock" in refused(holds_a_lock, group("g", "1"), **options)


def test_an_async_reward_is_not_sent_to_processes() -> None:
    assert "async" in refused(async_number, group("g", "1"), workers="process")


def test_rewards_of_one_account_with_different_limits_are_refused() -> None:
    parts = [
        rf.Weighted(PlainJudge, name="a", account="one key", limits={"max_concurrency": 1}),
        rf.Weighted(PlainJudge, name="b", account="one key", limits={"max_concurrency": 2}),
    ]
    before = set(threading.enumerate())
    assert "one key" in refused(parts, group("g", "1"))
    assert left_over(before) == []


def test_a_judge_that_was_built_is_closed_also_when_the_agent_cannot_be_opened(tmp_path: Path) -> None:
    happened: list[str] = []

    class Judge(PlainJudge):
        def close(self) -> None:
            happened.append("closed")

    refused([rf.Weighted(Judge, name="a"), rf.Weighted("/no/such.py:judge", name="b")])
    assert happened == ["closed"]
    (tmp_path / "notes.txt").write_text("dear diary " * 100)
    refused(Judge, journal=tmp_path / "notes.txt")
    assert happened == ["closed", "closed"]


def test_reward_kwargs_beside_weighted_rewards_are_refused() -> None:
    assert "reward_kwargs" in refused([rf.Weighted(number)], reward_kwargs={"x": 1})


@pytest.mark.parametrize("reward", [[], [number], 3, None, [rf.Weighted(number), rf.Weighted(number)]])
def test_what_is_no_reward_is_refused(reward: Any) -> None:
    assert refused(reward)


@pytest.mark.parametrize("weight", [math.nan, math.inf])
def test_a_weight_that_is_not_finite_is_refused(weight: float) -> None:
    with pytest.raises(rf.InvalidInput, match="weight"):
        rf.Weighted(number, weight)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("max_concurrency", value) for value in (0, -1, 2.5, True, "many")],
        *[("rpm", value) for value in (0, -60, math.nan, "fast")],
        *[("tpm", value) for value in (0, -1)],
        *[("max_refused", value) for value in (-0.1, 0.96, math.nan, "few", None)],
        *[("timeout_s", value) for value in (0, -1, math.nan, "60")],
        *[("verdict_timeout_s", value) for value in (0, -5)],
        *[("max_attempts", value) for value in (0, -1, 1.5)],
        *[("backoff_s", value) for value in (-1,)],
        *[("max_backoff_s", value) for value in (-1,)],
        *[("retry_budget", value) for value in (-0.1, math.nan)],
        *[("hedge_quantile", value) for value in (-0.5, 0, 1.5, math.nan)],
        *[("hedge_share", value) for value in (-0.5, 1.5)],
        *[("outage_share", value) for value in (-0.1, 2)],
        *[("outage_window", value) for value in (0, -20)],
        *[("outage_give_up_s", value) for value in (-1,)],
        *[("max_cost_usd", value) for value in (0, -1, math.nan)],
        *[("call_cost_usd", value) for value in (-0.01,)],
        *[("processes", value) for value in (0, -1)],
        *[("max_abandoned", value) for value in (-1,)],
        *[("workers", value) for value in ("threads", 4)],
        *[("reuse", value) for value in ("always",)],
        *[("store", value) for value in ("none",)],
        *[("incomplete_after_s", value) for value in (-1,)],
        *[("max_waiting_mb", value) for value in (0, -1, None, "256")],
        *[("close_timeout_s", value) for value in (0, -1)],
        *[("endpoints", value) for value in ("https://one", ["a", "a"])],
    ],
)
def test_a_setting_that_breaks_its_rule_is_refused_by_name_and_value(name: str, value: Any) -> None:
    with pytest.raises(rf.InvalidInput) as caught:
        rf.RewardAgent(number, **{name: value})
    assert name in str(caught.value)
    assert str(value) in str(caught.value) or repr(value) in str(caught.value)


def test_a_bad_limit_of_one_weighted_reward_is_refused_before_anything_is_sent() -> None:
    assert "max_concurrency" in refused([rf.Weighted(number, limits={"max_concurrency": -1})], group("g", "1"))


def test_an_unknown_setting_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(rf.InvalidInput, match="max_concurrency"):
        rf.RewardAgent(number, max_concurency=4)  # type: ignore[call-arg]


def test_a_reward_that_lacks_something_says_so_before_anything_is_sent() -> None:
    class Judge:
        def check(self) -> None:
            raise rf.InvalidInput("the environment variable JUDGE_KEY must be set")

        async def compute_score(self, solution_str: str) -> float:
            return 1.0

    class Odd(Judge):
        async def check(self) -> None:
            raise KeyError("x")

    async def open_with(reward: Any) -> None:
        async with rf.RewardAgent(reward):
            pass

    with pytest.raises(rf.InvalidInput, match="JUDGE_KEY"):
        clock.run(open_with(Judge))
    with pytest.raises(rf.RewardLoadError, match="cannot be used: KeyError"):
        clock.run(open_with(Odd))


# -- rollouts ----------------------------------------------------------------------------------------------------------


def never_called() -> tuple[list[str], Callable[..., Any]]:
    calls: list[str] = []

    async def reward(solution_str: str) -> float:
        calls.append(solution_str)
        return 1.0

    return calls, reward


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ([*group("g", "1", "2"), *group("g", "3", "4")[1:]], ["'g'", "index=1"]),
        ([group("g", "1", "2")[0], group("g", "1", "2", "3")[1]], ["'g'", "2", "3"]),
        ([*group("g", "1"), "not a rollout"], ["str"]),
        ([*group("g", "1"), None], ["NoneType"]),
    ],
)
def test_a_bad_batch_is_refused_whole_and_nothing_of_it_is_sent(bad: list[Any], words: list[str]) -> None:
    calls, reward = never_called()

    async def main() -> None:
        async with rf.RewardAgent(reward) as agent:
            with pytest.raises(rf.InvalidInput) as caught:
                agent.submit([*group("fine", "9"), *bad])
            assert all(word in str(caught.value) for word in words)
            await asyncio.sleep(10)
            assert calls == []
            assert agent.statistics().verdicts.submitted == 0
            assert values(await agent.submit(group("g", "1", "2")).all()) == {"g": [1.0, 1.0]}

    clock.run(main())


def test_an_index_that_is_already_there_is_refused_and_the_group_goes_on() -> None:
    async def main() -> None:
        async with rf.RewardAgent(async_number) as agent:
            first, second = group("g", "1", "2")
            ticket = agent.submit(first)
            with pytest.raises(rf.InvalidInput, match="index=0"):
                agent.submit([second, rf.Rollout(group_id="g", index=0, group_size=2, response="9")])
            assert ticket.missing == {"g": (1,)}
            agent.submit(second)
            assert values(await ticket.all()) == {"g": [1.0, 2.0]}

    clock.run(main())


@pytest.mark.parametrize(("index", "size"), [(2, 2), (-1, 2), (0, 0), (5, 1)])
def test_an_index_outside_its_group_is_refused(index: int, size: int) -> None:
    with pytest.raises(rf.InvalidInput, match=f"index={index}"):
        rf.Rollout(group_id="g", index=index, group_size=size, response="x")


@pytest.mark.parametrize("field", [{"step": None}, {"group_id": 7}, {"response": None}, {"extra_info": [1]}])
def test_a_rollout_of_wrong_types_is_refused_by_name(field: dict[str, Any]) -> None:
    (name,) = field
    with pytest.raises(rf.InvalidInput, match=name):
        rf.Rollout(**({"group_id": "g", "response": "x"} | field))


def test_a_batch_that_cannot_be_read_to_its_end_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with rf.RewardAgent(number) as agent:
            with pytest.raises(rf.InvalidInput):
                agent.submit([*group("g", "1", "2"), "not a rollout"])
            assert agent.statistics().verdicts.pending_groups == 0

    clock.run(main())


# -- journals ----------------------------------------------------------------------------------------------------------


def test_a_file_that_is_not_a_journal_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    calls, reward = never_called()
    path = tmp_path / "notes.txt"
    path.write_text("dear diary " * 100)
    with pytest.raises(NotAJournal, match=r"notes\.txt"):
        score_groups(reward, group("g", "1"), journal=path)
    assert calls == []
    assert path.read_text() == "dear diary " * 100


def test_somebody_elses_database_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    calls, reward = never_called()
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(NotAJournal, match=r"other\.db"):
        score_groups(reward, group("g", "1"), journal=path)
    assert (calls, path.read_bytes()) == ([], before)


def test_a_journal_of_a_newer_schema_is_refused(tmp_path: Path) -> None:
    calls, reward = never_called()
    path = tmp_path / "j.db"
    score_groups(number, group("g", "1"), journal=path)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 9999")
    connection.close()
    with pytest.raises(NewerJournal, match="9999"):
        score_groups(reward, group("g", "1"), journal=path)
    assert calls == []


def test_a_journal_that_somebody_holds_is_refused(tmp_path: Path) -> None:
    calls, reward = never_called()
    path = tmp_path / "j.db"
    score_groups(number, group("g", "1"), journal=path)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(JournalLocked, match=r"j\.db"):
            score_groups(reward, group("g", "1"), journal=path)
    finally:
        holder.close()
    assert calls == []


def test_on_a_full_disk_sending_stops_and_what_was_paid_is_delivered_once(tmp_path: Path) -> None:
    """A limit on file size stands in for the full disk: both make the write fail."""
    script = f"""
import asyncio, logging, resource, signal, sys
import rewardflow as rf
from rewardflow.errors import JournalWriteFailed

logging.basicConfig(level=logging.WARNING)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
calls = []

async def reward(solution_str):
    calls.append(solution_str)
    await asyncio.sleep(0.001)
    return {{"score": 1.0, "explanation": "x" * 10_000}}

async def main():
    delivered = []
    async with asyncio.timeout(20):
        try:
            async with rf.RewardAgent(reward, journal={str(tmp_path / "j.db")!r}, max_concurrency=5) as agent:
                resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
                async for group in agent.submit(rf.Rollout(group_id=str(i), response="x") for i in range(1000)):
                    delivered.append(group)
        except JournalWriteFailed as error:
            delivered += error.groups
            print("raised", error, flush=True)
    assert len(delivered) == len({{group.group_id for group in delivered}}) == 1000, len(delivered)
    paid = [group for group in delivered if group.rewards[0].value == 1.0]
    assert len(paid) == len(calls) < 30, (len(paid), len(calls))
    assert {{group.rewards[0].kind for group in delivered}} == {{None, "cancelled"}}
    print("delivered", flush=True)

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "delivered" in done.stdout
    assert "raised the journal" in done.stdout
    assert "ERROR" in done.stderr
    assert "j.db" in done.stderr
    assert "j.db" in done.stdout


def test_when_a_commit_fails_calls_in_flight_end_without_retries_and_nothing_new_is_sent(tmp_path: Path) -> None:
    calls: list[str] = []

    async def reward(solution_str: str) -> dict[str, object]:
        calls.append(solution_str)
        await asyncio.sleep({"quick": 1, "flaky": 5}.get(solution_str, 10))
        if solution_str == "flaky":
            raise rf.ServiceError("busy", status=503)
        return {"score": 1.0, "explanation": "x" * 50_000}

    async def main() -> list[rf.ScoredGroup]:
        async with rf.RewardAgent(reward, journal=tmp_path / "j.db", max_concurrency=3) as agent:
            texts = ["quick", "flaky", "slow", *["never"] * 20]
            ticket = agent.submit(rf.Rollout(group_id=f"{i}", response=text) for i, text in enumerate(texts))
            with pytest.raises(JournalWriteFailed, match=r"the journal .*j\.db must be written, but ") as halted:
                await ticket.all()
            with pytest.raises(JournalWriteFailed):
                agent.submit(rf.Rollout(group_id="later", response="never"))
            assert asyncio.get_running_loop().time() == 10
            raise halted.value
        raise AssertionError

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (32_768, before[1]))
    try:
        with pytest.raises(JournalWriteFailed) as halted:
            clock.run(main())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    kinds = {group.rollouts[0].response: group.rewards[0].kind for group in halted.value.groups}
    assert kinds == {"quick": None, "slow": None, "flaky": "service", "never": "cancelled"}
    assert len(halted.value.groups) == 23
    assert sorted(calls) == ["flaky", "quick", "slow"]
