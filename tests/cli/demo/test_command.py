"""The demo of training: two short runs over HTTP, what it says of them, and where it refuses."""

from __future__ import annotations

import dataclasses
import io
import multiprocessing

import orjson
import pytest
from rich.console import Console

from rewardflow.cli.demo.closing_report import DemoOutcome, DemoRun, closing_words, show
from rewardflow.cli.demo.command import SCHEDULES
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


def an_outcome(overlapped_s: float = 0.25) -> DemoOutcome:
    scores = [0.0, 0.5, 0.95, 1.0]
    synchronous, overlapped = SCHEDULES.values()
    return DemoOutcome(
        synchronous=a_run(synchronous, scores, 0.5),
        overlapped=a_run(overlapped, scores, overlapped_s),
        calls_per_step=16,
        slots=4,
        scale=0.01,
        service_s=0.24,
    )


# ---- the command --------------------------------------------------------------------------------------------------


def test_both_runs_train_on_verdicts_of_a_judge_and_the_outcome_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--steps", "3", "--json"]) == 0
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
    assert outcome["synchronous"]["scores"][0] == outcome["overlapped"]["scores"][0]  # the same weights and prompts
    assert outcome["floor_s"] == max(outcome["synchronous"]["step"]["compute_s"], outcome["service_s"])
    assert "training, synchronous" in said.err
    assert "step 1 of 3" in said.err
    assert multiprocessing.active_children() == []


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
    assert lines["reward of 0.9 after"] == ["1.5", "s", "0.8", "s"]
    assert lines["reward at the end"] == ["0.613", "0.613"]
    assert lines["reward by step"] == ["▁▅██", "▁▅██"]
    assert "floor: 0.24 s a step, the larger of compute (0.20 s) and judge (0.24 s)" in file.getvalue()
    assert "100 times as fast" in file.getvalue().replace("\n", " ")


def test_the_last_sentence_says_what_was_saved_and_at_what_reward() -> None:
    assert "saved 50% of the time (1.0 s of 2.0 s), with a final reward of 0.61 against 0.61" in closing_words(
        an_outcome()
    )


def test_a_run_that_took_longer_is_not_praised() -> None:
    assert "saved nothing" in closing_words(an_outcome(overlapped_s=0.6))


def an_outcome_with_a_slower_device(*, step_s: float) -> DemoOutcome:
    """In the second run, three times as slow."""
    outcome = an_outcome(overlapped_s=step_s)
    totals = TrainTotals()
    usage = dataclasses.replace(PLAIN.usage, busy_s={"generate": 0.3, "update": 0.3})
    for score in outcome.overlapped.totals.scores:
        totals.add(dataclasses.replace(PLAIN, score_mean=score, duration_s=step_s, usage=usage))
    return dataclasses.replace(outcome, overlapped=dataclasses.replace(outcome.overlapped, totals=totals))


def test_runs_on_a_machine_that_got_busier_meanwhile_are_not_compared() -> None:
    slow = an_outcome_with_a_slower_device(step_s=0.9)
    assert "took 3.0 times as long in the second run" in closing_words(slow)


def test_what_was_saved_although_the_device_was_slower_is_told_with_the_reason() -> None:
    words = closing_words(an_outcome_with_a_slower_device(step_s=0.25))
    assert "saved 50% of the time" in words
    assert "took 3.0 times as long as before: here it is a CPU that the calls" in words


def test_a_reward_that_was_never_reached_is_said_so() -> None:
    assert a_run("x", [0.1, 0.2], 1.0).reached_s(0.9) is None
    assert a_run("x", [0.1, 0.95, 0.3], 1.0).reached_s(0.9) == 2.0
