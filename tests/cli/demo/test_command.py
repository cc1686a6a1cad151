"""The demo of training: two short runs, what it says of them, and where it refuses."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import orjson
import pytest
from rich.console import Console

from rewardflow.cli.demo.closing_report import DemoOutcome, DemoRun, headline, next_steps, show, under_load
from rewardflow.cli.demo.command import COMPARISON_FILE, SCHEDULES
from rewardflow.cli.demo.expected_steps import ExpectedSteps
from rewardflow.cli.main import build_parser, main
from rewardflow.cli.train.totals import TrainTotals
from rewardflow.flow.device_usage import UsageTotals
from rewardflow.flow.reports import StepReport

PLAIN = StepReport(
    step=0,
    version=1,
    ended_s=0.0,
    duration_s=0.5,
    first_update_s=None,
    usage=UsageTotals(busy_s={"generate": 0.1, "update": 0.1}, idle_s={"reward": 0.3}, hidden_s=0.05),
    updates=(),
    num_groups=4,
    num_reserves_used=0,
    dropped={},
    num_scored=16,
    failed={},
    score_mean=0.0,
    component_means={},
    response_tokens_mean=3.0,
    staleness_mean=0.0,
    staleness_max=0,
    reward_latency_mean_s=0.2,
    cost_usd=0.0,
)


def a_run(name: str, scores: list[float], step_s: float) -> DemoRun:
    totals = TrainTotals()
    for score in scores:
        totals.add(dataclasses.replace(PLAIN, score_mean=score, duration_s=step_s))
    return DemoRun(name=name, totals=totals, durations_s=[step_s] * len(scores))


LEARNT = [0.0, *[0.95] * 12]  # the mean of ten steps is at the target after the eleventh
NOT_LEARNT = [0.1] * 13


def an_outcome(
    overlapped_s: float = 0.25, scores: list[float] = LEARNT, synchronous_scores: list[float] = LEARNT
) -> DemoOutcome:
    synchronous, overlapped = SCHEDULES.values()
    return DemoOutcome(
        synchronous=a_run(synchronous, synchronous_scores, 0.5),
        overlapped=a_run(overlapped, scores, overlapped_s),
        expected=ExpectedSteps(synchronous_s=0.5, overlapped_s=0.3),
        folder=Path("runs/demo"),
        calls_per_step=16,
        slots=4,
        scale=0.01,
        service_s=0.24,
        alone_s=0.2,
    )


# ---- the command --------------------------------------------------------------------------------------------------


def test_both_runs_train_on_verdicts_of_a_judge_are_kept_and_the_outcome_adds_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--steps", "3", "--json", "--run-dir", str(tmp_path)]) == 0
    said = capsys.readouterr()
    outcome = orjson.loads(said.out)
    for run, staleness in (("synchronous", 0), ("overlapped", 1)):
        assert outcome[run]["steps"] == 3
        assert outcome[run]["failed"] == {}
        assert outcome[run]["scored"] == 3 * outcome["calls_per_step"]
        assert outcome[run]["staleness_max"] == staleness
        assert len(outcome[run]["scores"]) == 3
        step = outcome[run]["step"]
        assert step["duration_s"] >= step["compute_s"] + step["exposed_s"]
        assert step["exposed_s"] == pytest.approx(outcome[run]["exposed_s"] / 3)
    one, other = (outcome[run]["scores"][0] for run in ("synchronous", "overlapped"))
    assert one == pytest.approx(other, abs=1e-9)  # the same weights and prompts; verdicts are added up as they come
    assert outcome["floor_s"] == max(outcome["synchronous"]["step"]["compute_s"], outcome["service_s"])
    assert "training, synchronous" in said.err
    assert "step 1 of 3" in said.err
    assert outcome["expected"]["overlapped_s"] < outcome["expected"]["synchronous_s"]
    assert "synchronous" in (tmp_path / COMPARISON_FILE).read_text()
    for name in SCHEDULES:
        assert main(["report", str(tmp_path / name), "--json"]) == 0
        assert orjson.loads(capsys.readouterr().out)["state"] == "finished"
    assert main(["plan", "--from", str(tmp_path / "synchronous"), "--json"]) == 0
    capsys.readouterr()
    assert main(["demo", "--steps", "3", "--run-dir", str(tmp_path)]) == 2  # it keeps what is there
    assert "which already holds one" in capsys.readouterr().err


def test_a_demo_of_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--steps", "0"]) == 2
    assert "--steps" in capsys.readouterr().err


def test_the_agents_own_demo_is_a_command_of_its_own() -> None:
    training, agent = (build_parser().parse_args(words) for words in (["demo"], ["demo", "agent"]))
    assert training.run is not agent.run
    assert agent.answers == 3000


# ---- what it says -------------------------------------------------------------------------------------------------


def test_the_report_shows_both_runs_beside_each_other_and_the_floor() -> None:
    file = io.StringIO()
    show(an_outcome(), Console(file=file, width=120))
    lines = {line[:23].strip(): line[23:].split() for line in file.getvalue().splitlines()}
    assert lines["step"] == ["0.50", "s", "0.25", "s"]
    assert lines["reward time exposed"] == ["0.30", "s", "0.30", "s"]
    assert lines["reward of 0.9 after"] == ["5.5", "s", "2.8", "s"]
    assert lines["reward at the end"] == ["0.950", "0.950"]
    assert "floor: 0.24 s a step, the larger of compute (0.20 s) and judge (0.24 s)" in file.getvalue()
    assert "100 times as fast" in file.getvalue().replace("\n", " ")


def test_the_headline_is_the_time_to_the_target_and_the_final_reward() -> None:
    assert headline(an_outcome()) == (
        "Overlapping reached a reward of 0.9 in 2.8 s instead of 5.5 s (-50%), "
        "with the same final reward (0.95 and 0.95)."
    )
    worse = headline(an_outcome(scores=[*LEARNT[:-3], 0.8, 0.8, 0.8]))
    assert worse.endswith("(-50%), with a final reward of 0.91 instead of 0.95.")


def test_a_run_that_took_longer_is_not_praised() -> None:
    assert "no sooner: in 6.6 s instead of 5.5 s" in headline(an_outcome(overlapped_s=0.6))


def test_a_target_that_was_not_reached_is_said_so() -> None:
    assert "In 13 steps neither run reached a reward of 0.9" in headline(an_outcome(0.25, NOT_LEARNT, NOT_LEARNT))
    assert "only the synchronous run reached" in headline(an_outcome(scores=NOT_LEARNT))
    assert "only the overlapped run reached" in headline(an_outcome(synchronous_scores=NOT_LEARNT))


def test_one_lucky_step_does_not_reach_the_target() -> None:
    assert a_run("x", [0.1, 0.95, *[0.1] * 12], 1.0).reached_s is None
    assert a_run("x", LEARNT, 1.0).reached_s == 11.0


def test_on_a_busy_machine_the_report_says_what_does_not_depend_on_it() -> None:
    outcome = an_outcome()
    totals = TrainTotals()
    usage = dataclasses.replace(PLAIN.usage, busy_s={"generate": 0.3, "update": 0.3}, idle_s={"reward": 0.1})
    for score in LEARNT:
        totals.add(dataclasses.replace(PLAIN, score_mean=score, duration_s=0.9, usage=usage))
    busy = dataclasses.replace(outcome, overlapped=dataclasses.replace(outcome.overlapped, totals=totals))
    words = under_load(busy)
    assert "took 1.0 and 3.0 times as long as before the runs" in words
    assert not outcome.is_under_load
    assert busy.is_under_load
    assert dataclasses.replace(outcome, alone_s=0.1).is_under_load  # all the time
    assert "waited 0.10 s a step for verdicts instead of 0.30 s" in words
    assert "steps of 0.30 s instead of 0.50 s (-40%)" in words
    file = io.StringIO()
    show(busy, Console(file=file, width=120))
    assert "Independent of that" in file.getvalue()


def test_the_last_lines_say_what_to_do_next_with_commands_that_work() -> None:
    page, plan, own = next_steps(an_outcome())
    assert page.endswith("runs/demo/comparison.html")
    assert plan.endswith("rewardflow plan --from runs/demo/synchronous")
    assert (Path(__file__).parents[3] / own.split()[-1]).exists()
