"""A plan from a run that was measured: the run is one of the loop itself, on the clock that jumps."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from statistics import fmean

import pytest

from rewardflow import clock
from rewardflow.errors import InvalidInput
from rewardflow.flow.fakes import CentredScores, FakeGenerator, FakePrompts, FakeTrainer
from rewardflow.flow.flow_parts import FlowParts
from rewardflow.flow.reports import StepReport
from rewardflow.flow.run import Flow
from rewardflow.flow.schedule import Schedule
from rewardflow.observe.run_directory import SETTINGS_FILE, RunDirectory
from rewardflow.plan.plan_file import load_plan
from rewardflow.plan.simulate import simulate
from rewardflow.reward.agent import RewardAgent
from rewardflow.runtime.records.saved_settings import write_settings
from rewardflow.settings.run_settings import DataSettings, GenerationSettings, RunSettings
from rewardflow.types import Rollout

STEPS = 8
SCHEDULE = Schedule(groups_per_step=32, mini_batches=4)


class Delayed:
    """Between 1 and 9 s, and a cent."""

    def __init__(self) -> None:
        self._rng = random.Random(1)

    async def compute_score(self, rollout: Rollout) -> dict[str, float]:
        await asyncio.sleep(self._rng.uniform(1.0, 9.0))
        return {"score": 1.0, "cost_usd": 0.01}


def write_run(path: Path, schedule: Schedule = SCHEDULE) -> list[StepReport]:
    reports: list[StepReport] = []

    async def main() -> None:
        async with RewardAgent(Delayed(), max_concurrency=16, run_dir=path, call_cost_usd=0.01) as agent:
            parts = FlowParts(
                schedule=schedule,
                prompts=FakePrompts(),
                generator=FakeGenerator(rollout_s=0.1),
                agent=agent,
                trainer=FakeTrainer(log_probs_s=0.02, forward_backward_s=0.2, optim_s=0.5),
                advantages=CentredScores(),
                group_size=4,
                micro_batch_tokens=80,
            )
            await Flow(parts, on_step=reports.append).run(steps=STEPS)

    clock.run(main())
    with RunDirectory.open(path).open_metrics() as metrics:
        for report in reports:
            metrics.append(report.to_json())
    settings = RunSettings(
        reward="judge.py:score",
        data=DataSettings(task="copy_digits"),
        schedule=schedule,
        steps=STEPS,
        generation=GenerationSettings(group_size=4),
        limits={"max_concurrency": 16},
    )
    write_settings(settings, path / SETTINGS_FILE)
    return reports


def test_a_run_says_all_that_a_plan_needs(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    plan = load_plan(measured=tmp_path / "run", overrides=["service.slots=32"])
    assert (plan.prompts, plan.responses, plan.mini_batches, plan.steps) == (32, 4, 4, STEPS)
    assert plan.device.generation_s == pytest.approx(12.8)
    assert plan.device.log_probs_s == pytest.approx(2.56)
    assert plan.device.update_s == pytest.approx(25.6 + 4 * 0.5)
    assert plan.service.slots == 32
    assert plan.service.price_usd == pytest.approx(0.01)
    assert plan.service.failures == 0.0
    latency = plan.service.latency_function()
    assert [latency(luck) for luck in (0.0, 0.5, 1.0)] == pytest.approx([1.0, 5.0, 9.0], rel=0.05)


def test_from_a_synchronous_run_the_steps_of_overlapped_ones_are_predicted_within_5_percent(tmp_path: Path) -> None:
    write_run(tmp_path / "synchronous")
    plan = load_plan(measured=tmp_path / "synchronous")
    for name in ("synchronous", "pipeline", "one_step", "pipeline_one_step"):
        real = write_run(tmp_path / f"as_{name}", plan.schedule(name))
        planned = simulate(plan, name, steps=STEPS).reports
        predicted_s, measured_s = (fmean(one.duration_s for one in reports[2:-2]) for reports in (planned, real))
        assert predicted_s == pytest.approx(measured_s, rel=0.05)


def test_a_run_that_only_scored_says_what_its_service_is_like(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    for name in ("metrics.jsonl", SETTINGS_FILE):
        (tmp_path / "run" / name).unlink()
    with pytest.raises(InvalidInput, match="prompts, device must be given"):
        load_plan(measured=tmp_path / "run")
    plan = load_plan(measured=tmp_path / "run", overrides=["prompts=8", "device={generation_s: 1, update_s: 1}"])
    assert plan.service.price_usd == pytest.approx(0.01)


def test_a_run_that_judged_nothing_and_one_with_strange_settings_are_refused(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "empty")
    with pytest.raises(InvalidInput, match="must have judged something"):
        load_plan(measured=tmp_path / "empty")
    write_run(tmp_path / "run")
    (tmp_path / "run" / SETTINGS_FILE).write_text(json.dumps({"schedule": 3}))
    with pytest.raises(InvalidInput, match="settings of a training run"):
        load_plan(measured=tmp_path / "run")


def test_lines_about_validations_and_of_steps_that_were_repeated_do_not_count(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    expected = load_plan(measured=tmp_path / "run").device
    metrics = tmp_path / "run" / "metrics.jsonl"
    lines = metrics.read_text().splitlines()
    slow = json.loads(lines[3]) | {"busy_s": {"generate": 999.0}}
    validation = {"v": 1, "step": 4, "source": "validation", "validation/score_mean": 0.5}
    metrics.write_text("\n".join([*lines[:3], json.dumps(slow), json.dumps(validation), *lines[3:]]) + "\n")
    assert load_plan(measured=tmp_path / "run").device == expected


def test_a_planned_call_stands_for_a_verdict_with_its_retries(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    steps = tmp_path / "run" / "steps.jsonl"
    lines = [json.loads(line) for line in steps.read_text().splitlines()]
    pace = {"limits": {"pace": {"changes": 1, "min": 90.0, "max": 300.0, "last": 120.0}}}
    for line in lines:
        repeated = {
            "calls": int(1.25 * line["rollouts"]),
            "retries": line["rollouts"] // 4,
            "accounts": {"judge": pace},
        }
        line |= {**repeated, "failed": {"timeout": line["rollouts"] // 8}, "cost_usd": 0.02 * line["rollouts"]}
    steps.write_text("".join(json.dumps(line) + "\n" for line in lines))
    plan = load_plan(measured=tmp_path / "run")
    assert plan.service.failures == pytest.approx(1 / 8)
    assert plan.service.price_usd == pytest.approx(0.02)
    assert plan.service.rpm == pytest.approx(120 / 1.25)
    assert plan.limits == {"max_attempts": 1}


def test_what_is_neither_a_run_nor_a_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "poem.db").write_text("no journal")
    with pytest.raises(Exception, match=r"poem\.db"):
        load_plan(measured=tmp_path / "poem.db", overrides=["prompts=8"])
    with pytest.raises(InvalidInput, match=r"run\.json"):
        load_plan(measured=tmp_path)
    with pytest.raises(InvalidInput, match="which does not exist"):
        load_plan(measured=tmp_path / "nowhere")
