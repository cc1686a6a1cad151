"""A run directory tells what happened: every event, one aggregate a step, over all sessions."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import rewardflow as rf
from rewardflow import clock
from rewardflow.observe.events import (
    AccountLoad,
    AgentEnded,
    AgentOpened,
    CallEnded,
    GroupDelivered,
    LimitChanged,
    VerdictReached,
)
from rewardflow.observe.run_directory import read_events, read_steps
from rewardflow.reward.recorder import Recorder


async def judge(solution_str: str) -> float:
    await asyncio.sleep(2)
    rf.report_usage(cost_usd=0.25, tokens=100)
    if solution_str == "bad":
        raise ValueError("key sk-abcdefghijklmnopqrstuvwxyz0123456789 is wrong")
    return 1.0


def run(folder: Path, texts: list[str], **options: object) -> None:
    async def main() -> None:
        async with rf.RewardAgent(judge, run_dir=folder / "run", max_concurrency=2, **options) as agent:
            await agent.submit(
                rf.Rollout(group_id=str(i // 2), index=i % 2, group_size=2, response=text, step=i // 4)
                for i, text in enumerate(texts)
            ).all()

    clock.run(main())


def test_events_and_aggregates_agree_with_what_happened(tmp_path: Path) -> None:
    run(tmp_path, ["a", "b", "bad", "c", "d", "e"])
    events = list(read_events(tmp_path / "run"))
    names = [type(event).__name__ for event in events]
    assert names[0] == AgentOpened.__name__
    assert names[-1] == AgentEnded.__name__
    assert [names.count(kind.__name__) for kind in (CallEnded, VerdictReached, GroupDelivered)] == [6, 6, 3]
    step = read_steps(tmp_path / "run")[0]["reward"]
    assert (step["groups"], step["scored"], step["failed"]) == (2, 3, {"user_error": 1})
    assert step["cost_usd"] == pytest.approx(1.0)
    assert step["tokens"] == 400
    waited = [event.waited_s for event in events if isinstance(event, VerdictReached)]
    assert waited == pytest.approx([0, 0, 2, 2, 4, 4])


def test_the_load_of_an_account_is_written_every_two_seconds_while_calls_go_on(tmp_path: Path) -> None:
    run(tmp_path, ["a"] * 12)
    loads = [event for event in read_events(tmp_path / "run") if isinstance(event, AccountLoad)]
    assert [(load.in_flight, load.waiting) for load in loads] == [(2, n) for n in (10, 8, 6, 4, 2, 0)]
    assert {(load.limit, load.rpm, load.broken) for load in loads} == {(2, None, 0)}


def test_two_agents_in_one_run_directory_are_refused_until_the_first_has_closed(tmp_path: Path) -> None:
    async def main() -> None:
        async with rf.RewardAgent(judge, run_dir=tmp_path / "run"):
            before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
            with pytest.raises(
                rf.InvalidInput, match=rf"one agent at a time, got .*run, which is in use by process {os.getpid()} on "
            ):
                async with rf.RewardAgent(judge, run_dir=tmp_path / "run"):
                    pass
            assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
        async with rf.RewardAgent(judge, run_dir=tmp_path / "run"):
            pass

    clock.run(main())
    assert not (tmp_path / "run" / "agent.lock").exists()


def test_no_key_reaches_the_run_directory(tmp_path: Path) -> None:
    run(tmp_path, ["bad", "bad"], endpoints=["https://user:hunter22@judge.example/v1"])
    written = "".join(path.read_text() for path in (tmp_path / "run").iterdir() if path.is_file())
    assert "sk-abc" not in written
    assert "hunter22" not in written


def test_a_resumed_run_keeps_what_its_earlier_sessions_paid(tmp_path: Path) -> None:
    journal = tmp_path / "j.db"
    run(tmp_path, ["a", "b"], journal=journal)
    run(tmp_path, ["a", "b", "c", "d"], journal=journal)
    step = read_steps(tmp_path / "run")[0]["reward"]
    assert (step["scored"], step["cached"], step["calls"]) == (4, 2, 4)
    assert step["cost_usd"] == pytest.approx(1.0)


def test_a_step_tells_what_its_account_learnt(tmp_path: Path) -> None:
    async def refusing(response: str, extra_info: dict[str, object]) -> float:
        await asyncio.sleep(1)
        if extra_info["group_uid"] == "0" and response == "bad":
            raise rf.RateLimited("429", retry_after_s=5.0)
        return 1.0

    async def main() -> None:
        async with rf.RewardAgent(refusing, run_dir=tmp_path / "run", max_attempts=2) as agent:
            bad = rf.Rollout(group_id="0", response="bad", step=0)
            await agent.submit([bad]).all()

    clock.run(main())
    told = read_steps(tmp_path / "run")[0]["reward"]
    assert told["outcomes"].keys() == {"rate_limited"}
    (account,) = told["accounts"].values()
    changes = [event for event in read_events(tmp_path / "run") if isinstance(event, LimitChanged)]
    assert changes
    assert sum(limit["changes"] for limit in account["limits"].values()) == len(changes)
    last = {event.governor: event.value for event in changes}
    assert {governor: limit["last"] for governor, limit in account["limits"].items()} == last


def test_a_file_that_cannot_be_closed_still_frees_the_run_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError("no space")

    async def main() -> None:
        recorder = Recorder(tmp_path, asyncio.get_running_loop())
        close_events = recorder._events.close
        monkeypatch.setattr(recorder._events, "close", fail)
        with pytest.raises(OSError, match="no space"):
            await recorder.aclose()
        close_events()
        await Recorder(tmp_path, asyncio.get_running_loop()).aclose()

    asyncio.run(main())
