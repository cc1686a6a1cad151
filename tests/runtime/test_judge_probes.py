"""The training judge is asked about the same answers again, through the run's own agent, and a change is told once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rewardflow as rf
from rewardflow import clock
from rewardflow.flow.records import JudgedRollout
from rewardflow.runtime.judge_probes import JudgeProbes
from rewardflow.settings.sections.audit import AuditSettings


class Judge:
    """Scores by length, and after `change` otherwise."""

    def __init__(self) -> None:
        self.shift = 0.0
        self.num_to_fail = 0
        self.asked: list[str] = []

    def compute_score(self, response: str, extra_info: dict[str, Any]) -> float:
        self.asked.append(extra_info["group_uid"])
        if len(self.asked) <= self.num_to_fail:
            raise rf.Unparsable("not a verdict")
        return 0.01 * len(response) + self.shift


def step_of(step: int) -> list[JudgedRollout]:
    return [
        JudgedRollout(
            rollout=rf.Rollout(
                group_id=f"{step}-{group}", step=step, index=i, group_size=2, response="x" * (group + 3 * i)
            ),
            reward=rf.Reward(value=0.5),
            advantage=0.0,
        )
        for group in range(20)
        for i in range(2)
    ]


def probed(
    folder: Path, judge: Judge, steps: range, *, changes_at: int | None = None, keeps_texts: bool = True, **agent: Any
) -> list[str]:
    """Shows these steps to the probes; returns what was told."""
    told: list[str] = []

    async def run() -> None:
        async with rf.RewardAgent(judge, journal=folder / "journal.db", **agent) as own:
            probes = JudgeProbes(
                AuditSettings(reward="gold.yaml", probe_every=10, probes=15),
                own,
                folder / "judge_probes.json",
                planned_steps=100,
                keeps_texts=keeps_texts,
                alarmed=told.append,
            )
            for step in steps:
                if step == changes_at:
                    judge.shift = 0.2
                if probes.is_due(step, step_of(step)):
                    await probes.probe(step)

    clock.run(run())
    return told


def test_whole_groups_of_the_first_step_are_asked_twice_and_then_every_so_many_steps(tmp_path: Path) -> None:
    judge = Judge()
    assert probed(tmp_path, judge, range(31)) == []
    asked = [name.partition("/") for name in judge.asked]
    assert len(asked) == 16 * 5  # 15 are wanted and groups stay whole; at 0 twice, at 10, 20 and 30
    assert {group for _, _, group in asked} == {f"0-{i}" for i in range(8)}
    assert {start.split("-")[1] for start, _, _ in asked} == {"0", "10", "20", "30"}


def test_a_changed_judge_is_told_once(tmp_path: Path) -> None:
    told = probed(tmp_path, Judge(), range(60), changes_at=15)
    assert len(told) == 1
    assert "the training judge changed before step 20: of 16 fixed answers that could tell, 16 have moved" in told[0]


def test_probes_that_all_fail_at_the_start_are_told_and_begin_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    judge = Judge()
    judge.num_to_fail = 32
    told = probed(tmp_path, judge, range(60), changes_at=15, max_attempts=1)
    assert "the judge could not be probed at step 0: none of 16 fixed answers has two scores" in caplog.text
    assert len(told) == 1, "the scores of step 10 are the start"
    assert "the training judge changed before step 20" in told[0]


def test_a_resumed_run_compares_with_the_same_start(tmp_path: Path) -> None:
    judge = Judge()
    assert probed(tmp_path, judge, range(15)) == []
    judge.shift = 0.2
    assert len(probed(tmp_path, judge, range(15, 40))) == 1
    assert probed(tmp_path, judge, range(40, 60)) == []  # it was told already


def test_without_texts_on_disk_a_resumed_run_begins_anew(tmp_path: Path) -> None:
    judge = Judge()
    assert probed(tmp_path, judge, range(15), keeps_texts=False) == []
    assert "xxx" not in (tmp_path / "judge_probes.json").read_text()
    judge.shift = 0.2
    assert probed(tmp_path, judge, range(15, 40), keeps_texts=False) == []


def test_a_judge_whose_verdicts_come_from_the_journal_cannot_be_probed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert probed(tmp_path, Judge(), range(60), changes_at=15, reuse="content") == []
    assert "set reuse: sample" in caplog.text
