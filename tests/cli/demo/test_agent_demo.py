"""The demo of the agent: `score` against the mock judge, its answers, and its check of itself."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest

import rewardflow as rf
from rewardflow.cli.demo.agent_demo import judge_settings, make_answers, problems_of, reward_file, truth_of
from rewardflow.cli.main import main
from rewardflow.mock_judge import MockJudge
from rewardflow.services.reward_file import load_reward_contents


def quick(run_dir: Path, *more: str) -> list[str]:
    return ["demo", "agent", "--answers", "200", "--seconds-scale", "0.05", "--run-dir", str(run_dir), *more]


# ---- the command --------------------------------------------------------------------------------------------------


def test_the_demo_ends_well_and_is_readable_without_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(quick(tmp_path / "run")) == 0
    said = capsys.readouterr()
    assert "200 rows" in said.out
    assert "No failure became a number" in said.out
    assert f"rewardflow journal ls {tmp_path / 'run' / 'journal.db'}" in said.out
    assert "scoring 200 answers" in said.err
    assert "\x1b" not in said.out + said.err


def test_the_summary_is_that_of_score_and_the_journal_serves_the_next_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(quick(tmp_path / "run", "--json")) == 0
    first = orjson.loads(capsys.readouterr().out)
    assert first["scored"] + sum(first["failed"].values()) == first["rows"] == 200
    assert first["scores"]["score"]["count"] == first["scored"]
    assert set(first["failed"]) <= set(rf.FAILURE_KINDS)
    assert first["retries"] > 0
    assert first["cost_usd"] > 0
    assert main(["journal", "ls", first["journal"], "--json", "--limit", "1000"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 200
    assert main(quick(tmp_path / "run", "--json")) == 0
    second = orjson.loads(capsys.readouterr().out)
    assert second["cached"] == first["scored"]
    assert second["scores"]["score"]["count"] >= first["scored"]


@pytest.mark.parametrize("wrong", [("--answers", "0"), ("--seconds-scale", "0"), ("--seconds-scale", "nan")])
def test_a_demo_of_nothing_is_refused(wrong: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "agent", *wrong]) == 2
    assert wrong[0] in capsys.readouterr().err


def test_other_peoples_files_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    assert main(quick(tmp_path)) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    assert "Traceback" not in capsys.readouterr().err


# ---- the check ----------------------------------------------------------------------------------------------------


def scored(answer: dict[str, Any], score: float | None) -> dict[str, Any]:
    return {**answer, "status": "scored", "score": score, "kind": None, "error": None}


def failed(answer: dict[str, Any], *, error: str | None = "no answer", score: float | None = None) -> dict[str, Any]:
    return {**answer, "status": "failed", "score": score, "kind": "timeout", "error": error}


def test_the_check_finds_what_is_lost_exchanged_made_up_or_unexplained() -> None:
    answers = [answer for answer in make_answers(40, 0) if truth_of(answer) is not None][:3]
    right = [*(scored(answer, truth_of(answer)) for answer in answers[:2]), failed(answers[2])]
    assert problems_of(answers, right) == []
    assert problems_of(answers, right[:2]) == ["3 answers must have as many verdicts, got 2"]
    assert len(problems_of(answers, [right[1], right[0], right[2]])) == 2
    assert len(problems_of(answers, [scored(answers[0], 0.123), *right[1:]])) == 1
    assert len(problems_of(answers, [*right[:2], failed(answers[2], error=None)])) == 1
    assert len(problems_of(answers, [*right[:2], failed(answers[2], score=0.0)])) == 1
    unscorable = [{**answer, "ground_truth": None} for answer in answers]
    assert len(problems_of(unscorable, right)) == 2


def test_the_mock_judge_gives_every_answer_the_score_that_the_check_expects() -> None:
    judge = MockJudge(judge_settings(seed=0, scale=1.0))
    (part,) = load_reward_contents(reward_file("http://127.0.0.1:1/v1", 1.0), folder=".").parts
    truths = set()
    for answer in make_answers(2000, seed=0):
        truth = truth_of(answer)
        truths.add(truth)
        if truth is not None:
            rollout = rf.Rollout(group_id="1", response=answer["response"], ground_truth=answer["ground_truth"])
            assert judge.score_of(part.reward.prompt(rollout), "correctness", 0.0, 1.0) == truth
    assert truths > {None, 0.0, 0.5, 1.0}


# ---- answers ------------------------------------------------------------------------------------------------------


def test_answers_come_in_whole_groups_of_four_or_five() -> None:
    answers = make_answers(1000, seed=3)
    assert len(answers) == 1000
    groups = Counter((answer["group_id"], answer["group_size"]) for answer in answers)
    assert all(count == size for (_, size), count in groups.items())
    assert [size for _, size in groups if size not in (4, 5)] in ([], [answers[-1]["group_size"]])


def test_a_seed_gives_the_same_answers_and_another_seed_others() -> None:
    assert make_answers(50, seed=1) == make_answers(50, seed=1)
    assert make_answers(50, seed=1) != make_answers(50, seed=2)
