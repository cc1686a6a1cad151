"""An audit watches a run without touching it: what it asks, what it writes, and when it speaks."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_run import settings_in

import rewardflow as rf
from rewardflow import clock
from rewardflow.errors import InvalidInput
from rewardflow.flow.records import JudgedRollout
from rewardflow.observe.run_directory import AUDIT_FILE, PAUSED_FILE
from rewardflow.report.judges.audit_section import audit_section, read_audit
from rewardflow.report.rollouts.rollout_sample import RolloutSample
from rewardflow.report.run_data import read_run
from rewardflow.report.run_page import run_page
from rewardflow.runtime.audit import AuditMonitor, audit_lines
from rewardflow.runtime.open_run import open_run
from rewardflow.settings.sections.audit import AuditSettings

GOLD = '''
import asyncio
import pathlib
import rewardflow as rf

CALLS = pathlib.Path(__file__).with_name("gold_calls.txt")


async def gold(response):
    """Sees through the magic word, and writes down what it was asked."""
    with CALLS.open("a") as file:
        file.write("x")
    if response == "down":
        raise rf.ServiceError("gone", retryable=False)
    return 0.0 if "magic" in response else 1.0


async def slow(response):
    await asyncio.sleep(1000.0 if response == "slow" else 0.0)
    return 1.0


async def dear(response):
    rf.report_usage(cost_usd=1.0)
    return 1.0
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "gold.py").write_text(GOLD, "utf-8")
    (tmp_path / "slow.yaml").write_text("reward: gold.py:slow\n", "utf-8")
    (tmp_path / "gold.yaml").write_text("reward: gold.py:gold\n", "utf-8")
    (tmp_path / "dear.yaml").write_text(
        "reward: gold.py:dear\nlimits: {max_cost_usd: 2.5, call_cost_usd: 1.0}\n", "utf-8"
    )
    return tmp_path


def step_of(step: int, response: str, score: float, *, size: int = 20, model: str = "m-1") -> list[JudgedRollout]:
    return [
        JudgedRollout(
            rollout=rf.Rollout(group_id=f"{step}-{i}", step=step, index=0, group_size=1, response=response),
            reward=rf.Reward(value=score, extras={"answered_by": model}),
            advantage=0.0,
        )
        for i in range(size)
    ]


def audited(
    folder: Path,
    steps: list[list[JudgedRollout]],
    *,
    reward: str = "gold.yaml",
    next_step: int = 0,
    on_alarm_do: Callable[[str], None] | None = None,
    **settings: Any,
) -> list[dict[str, Any]]:
    async def run() -> None:
        monitor = AuditMonitor(
            AuditSettings(reward=folder / reward, **{"share": 1.0, **settings}),
            folder,
            planned_steps=40,
            next_step=next_step,
            on_alarm=on_alarm_do,
        )
        async with monitor:
            for number, judged in enumerate(steps):
                monitor.audit(next_step + number, judged)
                await asyncio.sleep(1.0)

    clock.run(run())
    return audit_lines(folder / AUDIT_FILE)


def exploited(first_bad: int = 6, last: int = 14) -> list[list[JudgedRollout]]:
    return [
        step_of(step, "magic" if step >= first_bad else "good", 1.0 if step >= first_bad else 0.5)
        for step in range(last)
    ]


def test_every_audited_step_has_a_line_with_both_scores(folder: Path) -> None:
    lines = audited(folder, [step_of(0, "good", 0.25), step_of(1, "magic", 0.75)])
    assert [(line["step"], line["rollouts"], line["training_sum"], line["audit_sum"]) for line in lines] == [
        (0, 20, 5.0, 20.0),
        (1, 20, 15.0, 0.0),
    ]
    assert lines[0]["answered_by"] == {"m-1": 20}


def test_about_the_set_share_is_asked_and_failed_or_untrained_rollouts_are_not(folder: Path) -> None:
    some = step_of(0, "good", 0.5, size=400)
    failed = [JudgedRollout(rollout=one.rollout, reward=rf.Reward(kind="timeout")) for one in step_of(1, "x", 0.0)]
    greedy = [JudgedRollout(rollout=one.rollout, reward=one.reward, why_not="baseline") for one in step_of(2, "x", 0.0)]
    audited(folder, [some, failed, greedy], share=0.25)
    assert 70 <= len((folder / "gold_calls.txt").read_text()) <= 130


def test_an_exploited_judge_raises_one_alarm_and_stops_the_run_if_asked_to(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stops: list[str] = []
    with caplog.at_level(logging.WARNING):
        lines = audited(folder, exploited(), on_alarm="stop", on_alarm_do=stops.append)
    assert len(stops) == 1
    assert "the policy may exploit" in stops[0]
    assert [line["step"] for line in lines if line["alarm"]] == [9]
    assert "the policy may exploit the training judge" in caplog.text
    assert "--resume goes on" in caplog.text


def test_a_warning_stops_nothing(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    stops: list[str] = []
    with caplog.at_level(logging.WARNING):
        audited(folder, exploited(), on_alarm_do=stops.append)
    assert "AUDIT" in caplog.text
    assert not stops


def test_a_resumed_run_keeps_the_history_of_its_audit_and_pays_for_nothing_twice(folder: Path) -> None:
    steps = exploited()
    audited(folder, steps[:8])
    num_asked = len((folder / "gold_calls.txt").read_text())
    lines = audited(folder, steps[6:], next_step=6)
    assert len((folder / "gold_calls.txt").read_text()) == num_asked + 20 * 6
    assert [line["step"] for line in lines if line["alarm"]] == [9]
    again = audited(folder, exploited(99, 6), next_step=14)
    assert [line["step"] for line in again if line["alarm"]] == [9], "after an alarm the test begins anew"


def test_an_audit_without_money_ends_itself_and_not_the_run(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        lines = audited(
            folder, [step_of(0, "x", 0.5, size=2), *(step_of(i, "x", 0.5) for i in (1, 2))], reward="dear.yaml"
        )
    assert caplog.text.count("the audit ends at step 1, and the run goes on") == 1
    assert [line["step"] for line in lines] == [0]


def test_an_audit_that_fails_on_some_rollouts_counts_them(folder: Path) -> None:
    (line,) = audited(folder, [[*step_of(0, "good", 0.5, size=3), *step_of(1, "down", 0.5, size=2)]])
    assert (line["rollouts"], line["failed"]) == (3, 2)


def test_an_audit_that_always_fails_says_so_once_with_the_reason_and_on_the_page(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        audited(folder, [step_of(step, "down", 0.5, size=4) for step in range(3)])
    assert caplog.text.count("step 0 has no score of the audit: all of its 4 verdicts failed") == 1
    assert caplog.text.count("has no score of the audit") == 1
    assert "gone" in caplog.text
    assert "12 of 12 verdicts of the audit failed." in str(audit_section(read_audit(folder)))


def test_a_judge_whose_answers_name_another_model_is_noticed(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        audited(folder, [step_of(0, "x", 0.5), step_of(1, "x", 0.5), step_of(2, "x", 0.5, model="m-2")])
    assert "the training judge changed at step 2: its answers name m-2, and named m-1 before" in caplog.text
    assert caplog.text.count("changed at step") == 1


def changes_told(folder: Path) -> list[str]:
    """The sentences of the run's page about models."""
    section = str(audit_section(read_audit(folder)))
    return re.findall(r"changed at step \d+: its answers name [\w-]+", section)


def test_a_model_that_changes_at_a_step_without_an_audit_is_on_the_page_and_told_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    steps = [step_of(step, "x", 0.5, size=1, model="m-2" if step else "m-1") for step in range(4)]
    with caplog.at_level(logging.WARNING):
        audited(folder, steps[:2], share=1e-9)
        audited(folder, steps[2:], share=1e-9, next_step=2)
    assert caplog.text.count("the training judge changed at step 1") == 1
    assert caplog.text.count("changed at step") == 1
    assert changes_told(folder) == ["changed at step 1: its answers name m-2"]
    assert not (folder / "gold_calls.txt").exists()


def test_a_model_that_changed_while_a_run_stood_still_after_an_alarm_is_noticed(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    audited(folder, exploited()[:10])
    with caplog.at_level(logging.WARNING):
        audited(folder, [step_of(10, "good", 0.5, model="m-2")], next_step=10)
    assert "the training judge changed at step 10: its answers name m-2, and named m-1 before" in caplog.text


@pytest.mark.parametrize(
    "named",
    [
        lambda model: {"right/note": "x", "judge/answered_by": model},
        lambda model: {"answered_by": ["m-0", model]},
        lambda model: {"style/answered_by": "m-0", "jury/answered_by": (model,)},
    ],
)
def test_a_changed_model_is_noticed_inside_a_weighted_sum_and_among_votes(
    named: Callable[[str], dict[str, Any]], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def step(number: int, model: str) -> list[JudgedRollout]:
        return [
            replace(one, reward=replace(one.reward, extras=named(model))) for one in step_of(number, "x", 0.5, size=2)
        ]

    with caplog.at_level(logging.WARNING):
        lines = audited(folder, [step(0, "m-1"), step(1, "m-1"), step(2, "m-2")])
    assert caplog.text.count("the training judge changed at step 2: its answers name m-2") == 1
    assert lines[2]["answered_by"]["m-2"] == 2


def test_an_audit_whose_journal_is_lost_warns_once_and_the_run_goes_on(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Quick answers find the file gone while slow ones are still out, and the next steps come before these end."""

    def lose_journal() -> None:
        for file in folder.glob("audit.db*"):
            file.unlink()

    async def run() -> None:
        settings = AuditSettings(reward=folder / "slow.yaml", share=1.0)
        async with AuditMonitor(settings, folder, planned_steps=40) as monitor:
            monitor.audit(0, step_of(0, "slow", 0.5, size=2))
            await asyncio.sleep(1.0)
            lose_journal()
            for step in range(1, 5):
                monitor.audit(step, step_of(step, "quick", 0.5))
                await asyncio.sleep(1.0)

    with caplog.at_level(logging.WARNING):
        clock.run(run())
    assert caplog.text.count("the audit ends") == 1
    assert "and the run goes on" in caplog.text


def test_a_run_is_audited_while_it_trains_and_its_report_shows_it(folder: Path) -> None:
    settings = settings_in(folder, run_dir=folder / "run", audit=AuditSettings(reward=folder / "gold.yaml", share=0.5))

    async def run() -> int:
        async with open_run(settings) as opened:
            return await opened.train()

    assert asyncio.run(run()) == 3
    lines = audit_lines(folder / "run" / AUDIT_FILE)
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert 0 < sum(line["rollouts"] for line in lines) < 3 * 16
    data = read_run(folder / "run")
    assert "Mean score of the audited rollouts" in run_page(data, RolloutSample(rollouts=(), origin=""))


def test_an_alarm_can_end_a_run_after_a_checkpoint_and_it_can_go_on(folder: Path) -> None:
    settings = settings_in(folder, run_dir=folder / "run")

    async def run(*, stops: bool, resume: bool) -> int:
        async with open_run(settings, resume=resume) as opened:
            if stops and opened.checkpointer is not None:
                opened.checkpointer.stop("audit")
            return await opened.train()

    assert asyncio.run(run(stops=True, resume=False)) == 1
    assert asyncio.run(run(stops=False, resume=True)) == 3


def test_a_paused_run_waits_after_its_step_and_goes_on(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    audit = AuditSettings(reward=folder / "gold.yaml", share=0.5, on_alarm="pause")
    settings = settings_in(folder, run_dir=folder / "run", audit=audit)
    paused = folder / "run" / PAUSED_FILE

    async def run() -> int:
        async with open_run(settings) as opened:
            paused.write_text("somebody wants to look")
            async with asyncio.TaskGroup() as tasks:
                training = tasks.create_task(opened.train())
                for _ in iter(lambda: "PAUSED: the run waits" in caplog.text, True):
                    await asyncio.sleep(0.01)  # for real: a model trains in another thread
                assert not training.done()
                paused.unlink()
            return training.result()

    assert asyncio.run(run()) == 3
    assert "the run goes on" in caplog.text


def test_an_audit_needs_a_run_directory(folder: Path) -> None:
    with pytest.raises(InvalidInput, match="audit needs a run_dir"):
        settings_in(folder, audit=AuditSettings(reward="gold.yaml"))


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"share": 0.0}, "share must"),
        ({"alpha": 1.0}, "alpha must be below 1"),
        ({"reward": "gold.py:gold"}, "reward must be a reward file"),
        ({"on_alarm": "cry"}, "on_alarm must be"),
        ({"probe_every": 0}, "probe_every must be at least 1"),
        ({"probes": 0}, "probes must be at least 1"),
    ],
)
def test_settings_that_break_a_rule_are_refused(settings: dict[str, Any], rule: str) -> None:
    with pytest.raises(InvalidInput, match=rule):
        AuditSettings(**{"reward": "gold.yaml", **settings})
