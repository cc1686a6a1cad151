"""The demo of the agent: what it scores, that it checks itself, and what it shows."""

from __future__ import annotations

import dataclasses
import io
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console

import rewardflow as rf
from rewardflow import clock
from rewardflow.cli.demo.command import agent_demo as demo_agent
from rewardflow.cli.demo.demo_judge import STEPS, Answer, FlakyJudge, grade, make_answers
from rewardflow.cli.main import main


def quick(run_dir: Path, *more: str) -> list[str]:
    return ["demo", "agent", "--answers", "200", "--seconds-scale", "0.05", "--run-dir", str(run_dir), *more]


def play(count: int, run_dir: Path, console: Console, judge: FlakyJudge | None = None) -> demo_agent.Outcome:
    """The whole demo on the clock that jumps."""
    answers, judge = make_answers(count, 0), judge or FlakyJudge(count)
    naive = clock.run(demo_agent.score_without_agent(answers, dataclasses.replace(judge)))
    return clock.run(demo_agent.play(answers, judge, run_dir, console, naive=naive))


# ---- the command --------------------------------------------------------------------------------------------------


def test_the_demo_ends_well_and_is_readable_without_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(quick(tmp_path / "run")) == 0
    said = capsys.readouterr()
    assert "200 answers" in said.out
    assert "One after another" in said.out
    assert "No failure became a number" in said.out
    assert f"rewardflow journal ls {tmp_path / 'run' / 'journal.db'}" in said.out
    assert "scoring 200 answers" in said.err
    assert "\x1b" not in said.out + said.err


def test_json_is_one_object_whose_numbers_add_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(quick(tmp_path / "run", "--json", "--seed", "7")) == 0
    summary = orjson.loads(capsys.readouterr().out)
    assert summary["scored"] + sum(summary["failed"].values()) == summary["answers"] == 200
    assert sum(summary["scores"].values()) == summary["scored"]
    assert set(summary["failed"]) <= set(rf.FAILURE_KINDS)
    assert summary["reasons"].keys() == summary["failed"].keys()
    assert summary["calls"] == 200 + summary["retries"] + summary["hedges"]
    assert summary["cost_usd"] > 0
    assert summary["tokens"] > 0
    assert summary["latency_s"].keys() == {"p50", "p90", "p99"}
    assert summary["one_by_one_s"] > 0
    assert summary["naive"].keys() == {"died_after_s", "error", "scored"}
    assert summary["problems"] == []


def test_the_journal_it_names_holds_every_verdict_and_serves_the_next_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(quick(tmp_path / "run", "--json"))
    first = orjson.loads(capsys.readouterr().out)
    assert main(["journal", "ls", first["journal"], "--json", "--limit", "1000"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 200
    main(quick(tmp_path / "run", "--json"))
    second = orjson.loads(capsys.readouterr().out)
    assert (second["calls"], second["cached"]) == (0, 200)
    assert (second["scores"], second["failed"]) == (first["scores"], first["failed"])


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


class LyingJudge(FlakyJudge):
    async def compute_score(self, solution_str: str, ground_truth: str, extra_info: dict[str, Any]) -> Any:
        return 0.75


def test_a_wrong_score_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = play(20, tmp_path / "run", Console(file=io.StringIO()), LyingJudge(20))
    assert len(outcome.problems) == 20
    assert demo_agent.report(outcome, as_json=False) == 1
    said = capsys.readouterr()
    assert "THE CHECK FAILED" in said.out
    assert "No failure became a number" not in said.out
    assert "was scored 0.75" in said.err


def group_of(answers: list[Answer], rewards: list[rf.Reward]) -> rf.ScoredGroup:
    first = answers[0].rollout
    return rf.ScoredGroup(
        group_id=first.group_id,
        step=first.step,
        group_size=first.group_size,
        rollouts=tuple(answer.rollout for answer in answers),
        rewards=tuple(rewards),
    )


def test_the_check_finds_what_is_lost_doubled_made_up_or_unexplained() -> None:
    answers = [Answer(rf.Rollout(group_id="g", index=i, group_size=3, response=""), 0.5) for i in range(3)]
    unscorable = [dataclasses.replace(answer, truth=None) for answer in answers]
    right = [rf.Reward(value=0.5), rf.Reward(value=0.5), rf.Reward(kind="timeout", error="no answer")]
    assert demo_agent.check(answers, [group_of(answers, right)]) == []
    assert len(demo_agent.check(answers, [])) == 3
    assert len(demo_agent.check(answers, [group_of(answers, right)] * 2)) == 3
    assert len(demo_agent.check(unscorable, [group_of(answers, right)])) == 2
    assert len(demo_agent.check(answers, [group_of(answers, [*right[:2], rf.Reward(kind="timeout")])])) == 1


# ---- answers and judge --------------------------------------------------------------------------------------------


def test_answers_come_in_whole_groups_of_four_or_five_over_several_steps() -> None:
    rollouts = [answer.rollout for answer in make_answers(1000, seed=3)]
    assert len(rollouts) == 1000
    groups = Counter((rollout.step, rollout.group_id, rollout.group_size) for rollout in rollouts)
    assert all(count == size for (_, _, size), count in groups.items())
    assert [size for _, _, size in groups if size not in (4, 5)] in ([], [rollouts[-1].group_size])
    assert [step for step, _, _ in groups] == sorted(step for step, _, _ in groups)
    assert {rollout.step for rollout in rollouts} == set(range(STEPS))


def test_a_seed_gives_the_same_answers_and_another_seed_others() -> None:
    assert make_answers(50, seed=1) == make_answers(50, seed=1)
    assert make_answers(50, seed=1) != make_answers(50, seed=2)


def test_an_honest_judge_finds_the_truth_of_every_answer() -> None:
    truths = Counter()
    for answer in make_answers(3000, seed=0):
        truths[answer.truth] += 1
        if answer.truth is None:
            with pytest.raises(ValueError, match="invalid literal"):
                grade(answer.rollout.response, answer.rollout.ground_truth)
        else:
            assert grade(answer.rollout.response, answer.rollout.ground_truth)[0] == answer.truth
    assert truths.keys() == {None, 0.0, 0.2, 0.5, 1.0}


def test_without_an_agent_the_first_exception_ends_everything() -> None:
    naive = clock.run(demo_agent.score_without_agent(make_answers(500, 0), FlakyJudge(500)))
    assert naive.died_after_s is not None
    assert naive.error.startswith("RateLimited")
    assert naive.num_scored < 500


def test_luck_depends_on_the_answer_and_not_on_the_timing() -> None:
    async def kinds(slots: int) -> list[str | None]:
        judge = FlakyJudge(num_answers=1000, seed=5)  # with 400 to judge it never comes to the outage
        rollouts = [answer.rollout for answer in make_answers(400, 5)]
        async with rf.RewardAgent(judge, max_concurrency=slots, rpm=60 * slots, timeout_s=5, max_attempts=1) as agent:
            groups = await agent.submit(rollouts).all()
        return [reward.kind for group in groups for reward in group.rewards]

    found = clock.run(kinds(5))
    assert {"timeout", "service", "unparsable", "user_error", None} == set(found)
    assert clock.run(kinds(20)) == found


# ---- what is seen while it runs -----------------------------------------------------------------------------------


def test_without_a_terminal_there_is_a_plain_line_every_few_seconds(tmp_path: Path) -> None:
    file = io.StringIO()
    outcome = play(1500, tmp_path / "run", Console(file=file, width=60))
    first, *lines = file.getvalue().splitlines()
    assert first.startswith("scoring 1,500 answers")
    assert len(lines) == int(outcome.elapsed_s / 3)
    for line in lines:
        for word in ("of 1,500 done", "failed", "in flight", "waiting", "at once", "retries", "$", "left", "waits for"):
            assert word in line
    assert "\x1b" not in file.getvalue()


def test_on_a_terminal_there_is_a_live_picture_that_says_what_it_waits_for(tmp_path: Path) -> None:
    file = io.StringIO()
    play(1500, tmp_path / "run", Console(file=file, width=100, force_terminal=True, legacy_windows=False))
    shown = file.getvalue()
    for word in ("of 1,500", "verdicts a second", "█", "a minute (learnt", "the service to come back", "the last"):
        assert word in shown
    assert shown.rstrip().endswith("\x1b[2K")  # it leaves nothing behind
