"""The rollouts of a run come from its journal: scored ones, in whole groups, without validations and probes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import rewardflow as rf
from rewardflow.errors import InvalidInput
from rewardflow.judging.run_rollouts import read_judged_rollouts, sampled_groups


async def says(response: str) -> float | None:
    return None if response == "fail" else float(response)


def written(path: Path, reward: Any = says, **options: Any) -> Path:
    rollouts = [
        rf.Rollout(group_id=group_id, step=step, index=i, group_size=3, prompt="q", response=text, extra_info={"i": i})
        for step in range(2)
        for group_id in ("a", "b", "validation/3/0", "probe-0-again-1f/a")
        for i, text in enumerate(("0.5", "fail" if group_id == "b" else "0.25", "1.0"))
    ]

    async def run() -> None:
        async with rf.RewardAgent(reward, journal=path, run="r", max_attempts=1, **options) as agent:
            await agent.submit(rollouts).all()

    asyncio.run(run())
    return path


def test_scored_rollouts_are_read_in_groups_without_gaps(tmp_path: Path) -> None:
    judged = read_judged_rollouts(written(tmp_path / "j.db"), run="r")
    assert [(one.rollout.place, one.score) for one in judged[:5]] == [
        ((0, "a", 0), 0.5),
        ((0, "a", 1), 0.25),
        ((0, "a", 2), 1.0),
        ((0, "b", 0), 0.5),
        ((0, "b", 1), 1.0),
    ]
    assert len(judged) == 10
    assert judged[4].rollout.group_size == 2
    assert dict(judged[4].rollout.extra_info) == {"i": 2}


def test_steps_and_groups_can_be_chosen_and_the_choice_stays(tmp_path: Path) -> None:
    journal = written(tmp_path / "j.db")
    assert {one.rollout.step for one in read_judged_rollouts(journal, steps=range(1, 2))} == {1}
    some = sampled_groups(read_judged_rollouts(journal), 2)
    assert len({(one.rollout.step, one.rollout.group_id) for one in some}) == 2
    assert some == sampled_groups(read_judged_rollouts(journal), 2)
    with pytest.raises(InvalidInput, match="--groups must be at least 1"):
        sampled_groups(some, 0)


async def prefers_short(response: str) -> float:
    return 1.0 / len(response)


def test_the_score_of_a_sum_of_rewards_is_the_sum_that_was_trained_on(tmp_path: Path) -> None:
    parts = [rf.Weighted(says, weight=2.0, name="one"), rf.Weighted(prefers_short, weight=-1.0, name="two")]
    journal = written(tmp_path / "run" / "journal.db", parts, run_dir=tmp_path / "run")
    judged = read_judged_rollouts(journal)
    assert [one.score for one in judged[:3]] == pytest.approx([1.0 - 1 / 3, 0.5 - 1 / 4, 2.0 - 1 / 3])
    assert len(judged) == 10, "a rollout of which one reward failed has no sum"
    assert [one.score for one in read_judged_rollouts(journal, component="one")[:3]] == [0.5, 0.25, 1.0]


def test_a_sum_of_rewards_without_a_record_of_the_sums_needs_the_name_of_one(tmp_path: Path) -> None:
    parts = [rf.Weighted(says, name="one"), rf.Weighted(says, name="two")]
    journal = written(tmp_path / "j.db", parts)
    with pytest.raises(InvalidInput, match=r"sums several rewards \(one, two\), and there is no .*events.jsonl"):
        read_judged_rollouts(journal)
    assert len(read_judged_rollouts(journal, component="two")) == 10
    with pytest.raises(InvalidInput, match="must be one of the run's rewards"):
        read_judged_rollouts(journal, component="three")


def test_nothing_to_judge_and_texts_that_were_not_stored_are_told(tmp_path: Path) -> None:
    journal = written(tmp_path / "j.db")
    with pytest.raises(InvalidInput, match="no scored verdict"):
        read_judged_rollouts(journal, steps=range(7, 9))
    with pytest.raises(InvalidInput, match="store: hash"):
        read_judged_rollouts(written(tmp_path / "h.db", store="hash"))
