"""A run of the tiny policy that is measured on data of its own: what is written, and what it costs to be killed."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from killed_run import settings_of, train
from tiny_run import settings_in
from torch import Tensor

from rewardflow.errors import InvalidInput
from rewardflow.flow.reports import StepReport
from rewardflow.flow.schedule import Schedule
from rewardflow.flow.validation.validation_report import Validated
from rewardflow.runtime.local import embedded
from rewardflow.runtime.prepare import store_of
from rewardflow.settings.run_settings import (
    CheckpointSettings,
    DataSettings,
    GenerationSettings,
    RunSettings,
    ValidationSettings,
)

torch.set_num_threads(1)

PROMPTS = DataSettings(task="copy_digits", limit=6)
GREEDY = ValidationSettings(data=PROMPTS, every=2, at_start=True)
SAMPLED = ValidationSettings(data=PROMPTS, every=2, rollouts=4, temperature=1.0, pass_at=(1, 2, 4), passes_from=-5.0)


def run(settings: RunSettings, **options: Any) -> tuple[Tensor, list[Validated]]:
    told: list[Validated] = []
    weights = asyncio.run(train(settings, on_validation=told.append, **options))
    return weights, told


def answers_of(validated: Validated) -> list[str]:
    return [rollout.response for group in validated.groups for rollout in group.rollouts]


def lines_of(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text("utf-8").splitlines()]


def calls_in(folder: Path) -> Counter[str]:
    lines = (folder / "calls.txt").read_text("utf-8").splitlines()
    return Counter(line for line in lines if line.startswith("validation-"))


# ---- what is measured ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(groups_per_step=4, order="fixed"),
        Schedule(groups_per_step=4, mini_batches=2, stream="mini_batch", max_staleness=1, order="fixed"),
        Schedule(groups_per_step=4, stream="micro_batch", max_staleness=2, order="fixed"),
        Schedule(groups_per_step=4, max_staleness=1, order="fixed", placement="separate"),
    ],
    ids=["synchronous", "pipeline", "streaming", "separate"],
)
def test_training_gives_the_same_weights_whether_it_is_measured_or_not(schedule: Schedule, tmp_path: Path) -> None:
    settings = settings_of(tmp_path, schedule=schedule, run_dir=None, steps=4, checkpoint=CheckpointSettings())
    plain, _ = run(settings)
    measured, told = run(replace(settings, validation=GREEDY))
    assert torch.equal(plain, measured)
    assert [one.report.version for one in told] == [0, 2, 4]
    assert [group.rollouts[0].policy_version for one in told for group in one.groups] == [0] * 6 + [2] * 6 + [4] * 6


def test_a_copy_of_the_generator_measures_what_the_shared_one_measures(tmp_path: Path) -> None:
    schedule = Schedule(groups_per_step=4, max_staleness=1, order="fixed")
    settings = settings_of(
        tmp_path, schedule=schedule, run_dir=None, checkpoint=CheckpointSettings(), validation=SAMPLED
    )
    _, shared = run(settings)
    _, separate = run(replace(settings, schedule=schedule.changed(placement="separate")))
    assert [answers_of(one) for one in shared] == [answers_of(one) for one in separate]


def test_a_greedy_response_is_the_likeliest_token_each_time(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, run_dir=None, steps=1, checkpoint=CheckpointSettings(), validation=GREEDY)

    async def measure() -> tuple[Validated, list[int]]:
        told: list[Validated] = []
        async with embedded(settings, probes=False, on_validation=told.append) as embedded_run:
            prompts = embedded_run.parts.validation
            assert prompts is not None
            ids = embedded_run.policy.tokenizer(prompts.prompts[0].text, return_tensors="pt").input_ids
            expected = embedded_run.policy.model.generate(ids, do_sample=False, max_new_tokens=5)[0].tolist()
            await embedded_run.train()
        return told[0], expected

    told, expected = asyncio.run(measure())
    assert list(told.groups[0].rollouts[0].token_ids or ()) == expected


def test_figures_and_rollouts_are_written_to_the_run_directory(tmp_path: Path) -> None:
    _, told = run(settings_of(tmp_path, validation=SAMPLED))
    folder = tmp_path / "run"
    figures = sorted(lines_of(folder, "validation.jsonl"), key=lambda line: line["version"])
    assert [line["version"] for line in figures] == [2, 4, 6, 8]
    assert {line["v"] for line in figures} == {1}
    first = figures[0]["overall"]
    assert first["num_prompts"] == 6
    assert first["num_scored"] + first["num_failed"] == 24
    assert 0.0 <= first["pass@1"] <= first["pass@2"] <= first["pass@4"] <= 1.0
    assert list(figures[0]["by_source"]) == ["copy_digits"]
    metrics = lines_of(folder, "metrics.jsonl")
    assert [line["step"] for line in metrics if line["source"] == "train"] == list(range(8))
    by_version = {line["version"]: line for line in metrics if line["source"] == "validation"}
    assert by_version[2]["validation/score_mean"] == first["score_mean"]
    rollouts = lines_of(folder, "validation_rollouts.jsonl")
    assert Counter(line["version"] for line in rollouts) == {2: 24, 4: 24, 6: 24, 8: 24}
    scores = [line["score"] for line in rollouts if line["version"] == 2 and line["score"] is not None]
    assert sum(scores) / len(scores) == pytest.approx(first["score_mean"])
    assert {event.get("work") for event in lines_of(folder, "devices.jsonl")} >= {"validate", "generate", "update"}
    assert len(told) == 4


def test_where_the_journal_keeps_no_texts_neither_do_the_rollouts(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, steps=2, validation=GREEDY)
    run(replace(settings, limits={**settings.limits, "store": "hash"}))
    (line, *_) = lines_of(tmp_path / "run", "validation_rollouts.jsonl")
    assert "score" in line
    assert not {"prompt", "messages", "response", "ground_truth", "explanation"} & set(line)


# ---- killed -------------------------------------------------------------------------------------------------------


class Cut(Exception):
    """The run ends here."""


def test_no_verdict_of_a_validation_that_was_delivered_is_paid_twice(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, validation=SAMPLED, checkpoint=CheckpointSettings(every=1))
    undisturbed, expected = run(settings_of(tmp_path / "whole", validation=SAMPLED))

    def cut(report: StepReport) -> None:
        if report.step == 4:
            raise Cut

    with pytest.raises(Cut):
        asyncio.run(train(settings, on_step=cut))
    weights, _ = run(settings, resume=True)
    assert torch.equal(weights, undisturbed)
    figures = {line["version"]: line["overall"] for line in lines_of(tmp_path / "run", "validation.jsonl")}
    wanted = {one.report.version: one.report.overall.to_json() for one in expected}
    assert figures == wanted
    assert len(lines_of(tmp_path / "run", "validation.jsonl")) == 4
    asked, whole = calls_in(tmp_path), calls_in(tmp_path / "whole")
    assert set(asked) == set(whole)
    assert asked.total() <= whole.total() + settings.limits["max_concurrency"]


SLOW = r'''
import asyncio
import pathlib

CALLS = pathlib.Path(__file__).with_name("calls.txt")
GATE = pathlib.Path(__file__).with_name("gate")


async def judge(response, ground_truth, extra_info):
    """Answers about a validation's third prompt only when the gate is open."""
    with CALLS.open("a") as file:
        file.write(f"{extra_info['group_uid']}\t{response}\n")
    while extra_info["group_uid"] == "validation-2" and not GATE.exists():
        await asyncio.sleep(0.01)
    return float(len(response))
'''


def test_verdicts_that_are_out_when_a_run_is_saved_are_waited_for_by_the_one_that_goes_on(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text(SLOW, "utf-8")
    settings = settings_of(
        tmp_path,
        steps=4,
        validation=replace(GREEDY, at_start=False, at_end=False),
        limits={"max_concurrency": 6, "timeout_s": None},
        checkpoint=CheckpointSettings(every=1, keep=1, keep_best_by="validation/score_mean"),
    )

    def cut(report: StepReport) -> None:
        if report.step == 3:
            raise Cut

    with pytest.raises(Cut):
        asyncio.run(train(settings, on_step=cut))
    assert not lines_of(tmp_path / "run", "validation.jsonl")
    # Version 2 may be the best, so its checkpoint stays beside the latest.
    assert [one.step for one in store_of(settings).all()] == [2, 3]
    (tmp_path / "gate").touch()
    _, told = run(settings, resume=True)
    assert sorted(one.report.version for one in told) == [2, 4]
    assert calls_in(tmp_path).total() == 6 + 1 + 6  # of version 2, what was out of it, and of version 4
    best = store_of(settings).best()
    assert best is not None
    assert best.score == max(one.report.overall.score_mean or 0.0 for one in told)


@pytest.mark.parametrize(
    "change", [{"data": DataSettings(task="copy_digits", limit=3)}, {"temperature": 0.7}], ids=["data", "sampling"]
)
def test_a_validation_that_has_changed_is_not_gone_on_with(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: dict[str, Any]
) -> None:
    (tmp_path / "judge.py").write_text(SLOW, "utf-8")
    settings = settings_of(
        tmp_path,
        steps=4,
        validation=replace(GREEDY, at_start=False, at_end=False),
        limits={"max_concurrency": 6, "timeout_s": None},
        checkpoint=CheckpointSettings(every=1),
    )

    def cut(report: StepReport) -> None:
        if report.step == 3:
            raise Cut

    with pytest.raises(Cut):
        asyncio.run(train(settings, on_step=cut))
    (tmp_path / "gate").touch()
    other = replace(GREEDY, at_start=False, **change)
    with caplog.at_level(logging.WARNING):
        _, told = run(replace(settings, validation=other), resume=True)
    assert [one.report.version for one in told] == [4]
    assert "the validation has changed since" in caplog.text


# ---- the best -----------------------------------------------------------------------------------------------------


def test_the_best_checkpoint_is_that_of_the_version_with_the_highest_figure(tmp_path: Path) -> None:
    checkpoint = CheckpointSettings(keep=1, keep_best_by="validation/mean@4")
    settings = settings_of(tmp_path, validation=SAMPLED, checkpoint=checkpoint)
    _, told = run(settings)
    best_version = max(told, key=lambda one: (one.report.overall.mean_at_n or 0.0, one.report.version)).report.version
    store = store_of(settings)
    best = store.best()
    assert best is not None
    assert best.step == best_version
    assert [one.step for one in store.all()] == sorted({best_version, 8})


# ---- mistakes -----------------------------------------------------------------------------------------------------


def test_what_cannot_be_measured_is_told_before_a_model_is_loaded(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, policy=replace(settings_in(tmp_path).policy, model="nobody/no-such-model"))
    missing = ValidationSettings(data=DataSettings(path=tmp_path / "missing.jsonl"))
    with pytest.raises(InvalidInput, match=r"the file of prompts must exist, got .*missing.jsonl"):
        run(replace(settings, validation=missing))


def test_prompts_that_are_all_too_long_are_told(tmp_path: Path) -> None:
    generation = GenerationSettings(group_size=4, max_prompt_tokens=4, max_response_tokens=5, overlong_prompts="filter")
    long = ValidationSettings(data=DataSettings(task="copy_digits", num_digits=9, limit=3))
    with pytest.raises(InvalidInput, match=r"some prompt of validation\.data must have at most"):
        run(settings_in(tmp_path, generation=generation, validation=long))


def test_a_reward_that_compares_rollouts_needs_several_of_them(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"compares the rollouts of a group, so validation\.rollouts must be at lea"):
        run(settings_in(tmp_path, "Ranking", validation=GREEDY))
