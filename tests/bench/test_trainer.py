"""The benchmark of training at tiny sizes; the figures themselves are measured by hand, not by tests."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rewardflow.bench.contender import ContenderFailed, Program, running
from rewardflow.bench.contenders.turns import Spent, Turn
from rewardflow.bench.contenders.workload import MODEL, Workload, read_prompts
from rewardflow.bench.trainer import (
    OURS,
    TRL,
    VERL,
    TrainerFigures,
    programs,
    report_of,
    rows_of,
    run_trainer_benchmarks,
)
from rewardflow.bench.trainer_workload import write_workload
from rewardflow.cli.bench import holds
from rewardflow.errors import InvalidInput

TINY = Workload(
    prompts_per_step=2,
    group_size=2,
    response_tokens=3,
    hidden=16,
    feed_forward=16,
    num_layers=1,
    vocabulary=80,
    warmup_steps=1,
    rounds=2,
    steps_per_round=2,
)
FAST = Turn(steps=2, wall_s=2.0, cpu_s=2.0, spent=Spent(generate_s=0.5, update_s=1.0), peak_mb=100.0)
SLOW = Turn(steps=2, wall_s=4.0, cpu_s=4.0, spent=Spent(generate_s=1.0, log_probs_s=1.0, update_s=2.0), peak_mb=300.0)

without_trl = pytest.mark.skipif(importlib.util.find_spec("trl") is not None, reason="trl is installed")


def figures(name: str, turns: Sequence[Turn], why_not: str = "") -> TrainerFigures:
    return TrainerFigures(name=name, workload=TINY, turns=turns, why_not=why_not)


@pytest.fixture(scope="module")
def measured() -> Sequence[TrainerFigures]:
    """Ours, TRL in an environment without it, and verl with an interpreter that is not there."""
    ours, trl, _ = programs()
    return list(run_trainer_benchmarks([ours, trl, programs(verl_python="/nowhere/python")[2]], workload=TINY))


@without_trl
def test_our_run_takes_turns_and_tells_what_they_took(measured: Sequence[TrainerFigures]) -> None:
    ours = measured[0]
    assert [turn.steps for turn in ours.turns] == [2, 2]
    assert 0 < ours.generate_s < ours.step_s
    assert 0 < ours.update_s <= ours.train_s < ours.step_s
    assert ours.peak_mb > 50
    assert set(ours.versions or ()) == {"torch", "transformers"}


@without_trl
def test_what_is_not_installed_is_not_measured_and_told_how_to_install(measured: Sequence[TrainerFigures]) -> None:
    ours, trl, _ = measured
    assert not trl.turns
    assert f"{sys.executable} has no trl" in trl.why_not
    assert "trl_requirements.txt" in trl.why_not
    assert report_of([ours, trl])["trainer"][1] == {"name": TRL, "is_measured": False, "why_not": trl.why_not}


@without_trl
def test_an_interpreter_that_is_not_there_is_told(measured: Sequence[TrainerFigures]) -> None:
    assert measured[2].why_not == "/nowhere/python cannot be run: No such file or directory"


def test_a_contender_that_dies_is_explained_by_its_last_error(tmp_path: Path) -> None:
    with (
        running(Program(name=OURS, module="ours"), tmp_path / "missing") as contender,
        pytest.raises(ContenderFailed, match=r"rewardflow ended with 1: FileNotFoundError.*workload\.json"),
    ):
        contender.prepare()


def test_every_install_hint_names_a_file_that_is_there() -> None:
    for program in programs()[1:]:
        named = next(word for word in program.how_to_install.split() if word.endswith("requirements.txt"))
        assert f"{program.name}==" in Path(named).read_text("utf-8")


def test_nobody_can_draw_the_end_token_and_prompts_have_the_lengths_asked_for(tmp_path: Path) -> None:
    from rewardflow.policy.load_policy import load_policy
    from rewardflow.settings.run_settings import PolicySettings

    write_workload(TINY, tmp_path)
    assert Workload.read(tmp_path) == TINY
    policy = load_policy(PolicySettings(model=str(tmp_path / MODEL)), seed=0)
    assert all(token >= TINY.vocabulary for token in policy.eos_ids)
    prompts = read_prompts(tmp_path)
    assert len(prompts) == TINY.prompts_per_step * TINY.total_steps
    lengths = {len(policy.tokenizer.encode(prompt)) for prompt in prompts}
    assert lengths == {len(prompt) for prompt in prompts}
    assert min(lengths) >= TINY.shortest_prompt
    assert max(lengths) <= TINY.longest_prompt


def test_rows_hold_ours_against_each_contender() -> None:
    rows = {row.name: row for row in rows_of([figures(OURS, [FAST]), figures(TRL, [SLOW]), figures(VERL, [SLOW])])}
    step = rows["whole step: sampled tokens a second, against trl"]
    assert (step.value, step.yardstick) == (12.0, 6.0)
    assert holds(step) is True
    update = rows["update: forward, backward, optimizer: sampled tokens a second, against verl"]
    assert (update.value, update.yardstick) == (24.0, 12.0)
    assert rows["peak memory, against verl"].ratio == pytest.approx(1 / 3)


def test_a_row_without_a_contender_promises_nothing_and_says_why() -> None:
    rows = list(rows_of([figures(OURS, [FAST]), figures(TRL, [], "no trl"), figures(VERL, [], "no verl")]))
    assert {row.yardstick for row in rows} == {None}
    assert {holds(row) for row in rows} == {None}
    assert {row.yardstick_name for row in rows} == {"not measured: no trl", "not measured: no verl"}


def test_figures_are_medians_over_rounds() -> None:
    stuck = replace(FAST, wall_s=90.0)
    assert figures(OURS, [FAST, stuck, FAST]).step_s == 1.0


@pytest.mark.parametrize("name", ["rounds", "prompts_per_step"])
def test_a_workload_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"got {name}=0"):
        replace(TINY, **{name: 0})
