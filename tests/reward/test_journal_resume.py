"""A killed run resumes from its journal without paying again for what it delivered. Real processes, real disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from rollouts import singles
from scoring import score

import rewardflow as rf
from rewardflow.reward.journal.reader import JournalReader

SLOTS = 8

# The calls of this script take real milliseconds, because a test kills its process while some are in flight.
RUN = """
    import asyncio, os, sys
    import rewardflow as rf

    calls = open("calls.txt", "a", buffering=1)
    delivered = open("delivered.txt", "a", buffering=1)

    class Judge:
        version = "1"

        async def compute_score(self, rollout):
            calls.write(rollout.response + "\\n")
            await asyncio.sleep(0.002 * (1 + rollout.index))
            if rollout.response.endswith("7"):
                raise ValueError("the judge's own fault")
            return float(rollout.response)

    async def main():
        rollouts = [
            rf.Rollout(group_id=str(i // 4), index=i % 4, group_size=4, response=str(i), step=i // 400)
            for i in range(1200)
        ]
        async with rf.RewardAgent(Judge, max_concurrency=8, journal="run.db", run_dir="run") as agent:
            async for group in agent.submit(rollouts):
                for rollout, reward in zip(group.rollouts, group.rewards):
                    delivered.write(f"{rollout.response} {reward.value} {reward.kind}\\n")
        print("finished")

    asyncio.run(main())
"""


def start(folder: Path) -> subprocess.Popen[str]:
    script = folder / "run.py"
    script.write_text(textwrap.dedent(RUN))
    return subprocess.Popen([sys.executable, str(script)], cwd=folder, stdout=subprocess.PIPE, text=True)


def lines(path: Path) -> list[str]:
    """Whole lines only: a killed process may leave half of one."""
    return [line for line in path.read_text().split("\n")[:-1] if line] if path.exists() else []


def test_after_kill_9_what_was_delivered_is_not_called_again(tmp_path: Path) -> None:
    with start(tmp_path) as killed:
        while len(lines(tmp_path / "delivered.txt")) < 300 and killed.poll() is None:
            os.sched_yield()
        os.kill(killed.pid, signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL, "it finished before it could be killed"
    called_before = lines(tmp_path / "calls.txt")
    delivered_before = lines(tmp_path / "delivered.txt")

    with start(tmp_path) as resumed:
        output, _ = resumed.communicate(timeout=60)
    assert output.strip() == "finished"

    called_after = lines(tmp_path / "calls.txt")[len(called_before) :]
    was_delivered = {line.split()[0] for line in delivered_before}
    assert not was_delivered & set(called_after), "a delivered verdict was paid for twice"
    assert len(set(called_before) & set(called_after)) <= SLOTS, "more was called again than had been in flight"
    assert set(called_before) | set(called_after) == {str(i) for i in range(1200)}
    delivered_after = lines(tmp_path / "delivered.txt")[len(delivered_before) :]
    assert len(delivered_after) == 1200
    assert set(delivered_before) <= set(delivered_after), "a resumed run tells the same verdicts, failures too"
    steps = [json.loads(line) for line in (tmp_path / "run" / "steps.jsonl").read_text().splitlines()]
    assert {line["step"] for line in steps} == {0, 1, 2}


class Counting:
    """Counts its calls; as a class attribute, so that it is not part of the reward's identity."""

    calls: list[str]

    async def compute_score(self, solution_str: str) -> float:
        type(self).calls.append(solution_str)
        rf.report_usage(cost_usd=0.5, tokens=10)
        if solution_str == "fails":
            raise ValueError("no")
        return float(len(solution_str))


@pytest.fixture
def judge() -> type[Counting]:
    Counting.calls = []
    return Counting


def test_by_sample_a_second_run_of_the_same_is_free_and_says_so(judge: type[Counting], tmp_path: Path) -> None:
    first = score(judge, singles("a", "fails"), journal=tmp_path / "j.db")
    second = score(judge, singles("a", "fails"), journal=tmp_path / "j.db")
    assert judge.calls == ["a", "fails"]
    assert [reward.value for reward in second] == [1.0, None]
    assert second[1].kind == "user_error"
    assert all(reward.cached and reward.cost_usd == 0 for reward in second)
    assert first[0].cost_usd == 0.5


def test_by_sample_another_step_or_run_is_asked_again(judge: type[Counting], tmp_path: Path) -> None:
    score(judge, singles("a"), journal=tmp_path / "j.db")
    score(judge, singles("a", step=1), journal=tmp_path / "j.db")
    score(judge, singles("a"), run="another", journal=tmp_path / "j.db")
    assert len(judge.calls) == 3


def test_by_content_the_place_does_not_matter_but_failures_are_asked_again(
    judge: type[Counting], tmp_path: Path
) -> None:
    score(judge, singles("a", "fails"), journal=tmp_path / "j.db", reuse="content")
    score(judge, singles("fails", "a", step=5), journal=tmp_path / "j.db", reuse="content")
    assert judge.calls == ["a", "fails", "fails"]


def test_by_content_equal_answers_that_are_out_together_are_asked_once(judge: type[Counting]) -> None:
    rewards = score(judge, singles(*(["same"] * 10 + ["fails"] * 2)), reuse="content")
    assert judge.calls.count("same") == 1
    assert judge.calls.count("fails") == 2, "a failure is not shared: each gets its own try"
    assert [reward.value for reward in rewards] == [4.0] * 10 + [None] * 2
    assert sum(reward.cost_usd for reward in rewards) == pytest.approx(0.5 * 3)


def test_reuse_off_asks_again_but_still_keeps_what_was_paid(judge: type[Counting], tmp_path: Path) -> None:
    for _ in range(2):
        score(judge, singles("a"), journal=tmp_path / "j.db", reuse="off")
    assert len(judge.calls) == 2
    with JournalReader(tmp_path / "j.db") as reader:
        assert len(list(reader.rows())) == 2


def test_another_version_of_the_reward_is_another_reward(judge: type[Counting], tmp_path: Path) -> None:
    score(judge, singles("a"), journal=tmp_path / "j.db")
    judge.version = "2"
    try:
        score(judge, singles("a"), journal=tmp_path / "j.db")
    finally:
        del judge.version
    assert len(judge.calls) == 2


def test_what_the_run_spent_before_counts_towards_the_cap(judge: type[Counting], tmp_path: Path) -> None:
    score(judge, singles("a", "b"), journal=tmp_path / "j.db", max_cost_usd=1.5, call_cost_usd=0.5)
    with pytest.raises(rf.BudgetExhausted) as caught:
        score(judge, singles("c", "d", step=1), journal=tmp_path / "j.db", max_cost_usd=1.5, call_cost_usd=0.5)
    kinds = sorted(str(reward.kind) for group in caught.value.groups for reward in group.rewards)
    assert kinds == ["None", "budget"]
    assert judge.calls == ["a", "b", "c"]


def test_failures_are_asked_again_when_they_are_not_to_be_replayed(judge: type[Counting], tmp_path: Path) -> None:
    for _ in range(2):
        score(judge, singles("a", "fails"), journal=tmp_path / "j.db", replay_failures=False)
    assert judge.calls == ["a", "fails", "fails"]
