"""Groups of a verl run as events of its directory."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from rewardflow.adapters.verl.accounting.group_events import GroupEvents
from rewardflow.adapters.verl.accounting.group_report import GroupReport, JudgedSample
from rewardflow.observe.events import CallEnded, GroupDelivered, VerdictReached
from rewardflow.observe.run_directory import read_events, read_steps
from rewardflow.reward.recorder import Recorder
from rewardflow.types import Reward


def call(index: int, *, began_s: float, attempt: int = 1, cost_usd: float = 0.5) -> CallEnded:
    return CallEnded(
        at_s=began_s + 1,
        step=2,
        group_id="a",
        index=index,
        reward="judge",
        attempt=attempt,
        started_s=began_s,
        latency_s=1.0,
        outcome="scored",
        cost_usd=cost_usd,
    )


def written(path: Path, calls: list[CallEnded], group: GroupReport) -> None:
    async def main() -> None:
        recorder = Recorder(path, asyncio.get_running_loop())
        groups = GroupEvents(recorder)
        for one in calls:
            groups.emit(one)
        groups.left([group, GroupReport(uid="b", step=0, size=0, verdicts=())])
        await recorder.aclose()

    asyncio.run(main())


def group_of_two(asked_s: float) -> GroupReport:
    verdicts = (
        JudgedSample(index=0, reward=Reward(value=1.0, attempts=2, latency_s=3.0), asked_s=asked_s),
        JudgedSample(index=1, reward=Reward(kind="timeout", error="late", attempts=1), asked_s=asked_s),
    )
    return GroupReport(uid="a", step=2, size=2, verdicts=verdicts, first_generated_s=asked_s, judged_s=asked_s + 4)


def test_the_run_directory_reads_like_any_other(tmp_path: Path) -> None:
    began_s = time.monotonic()
    calls = [call(0, began_s=began_s), call(0, began_s=began_s + 2, attempt=2), call(1, began_s=began_s)]
    written(tmp_path / "run", calls, group_of_two(time.time()))
    events = list(read_events(tmp_path / "run"))
    assert [type(event) for event in events] == [CallEnded] * 3 + [VerdictReached, VerdictReached, GroupDelivered]
    totals = read_steps(tmp_path / "run")[2]["reward"]
    assert (totals["scored"], totals["failed"], totals["groups"]) == (1, {"timeout": 1}, 1)
    assert (totals["calls"], totals["retries"], totals["cost_usd"]) == (3, 1, 1.5)


def test_a_sample_waited_from_asking_to_the_start_of_its_first_call(tmp_path: Path) -> None:
    began_s = time.monotonic()
    calls = [call(0, began_s=began_s), call(0, began_s=began_s + 9, attempt=2)]
    written(tmp_path / "run", calls, group_of_two(time.time() - 5))
    waited = [event.waited_s for event in read_events(tmp_path / "run") if isinstance(event, VerdictReached)]
    assert waited == [pytest.approx(5, abs=0.5)] * 2  # the second was judged in the call of the first
