"""`rewardflow eval`: the figures of a model are those that training told of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_run import calls_in, write_run_file

from rewardflow.cli.main import main

torch.set_num_threads(1)

VALIDATION = """
validation:
  data: {task: copy_digits, limit: 5}
  every: 1
  at_start: true
  rollouts: 2
  temperature: 1.0
  pass_at: [1, 2]
  passes_from: -20
checkpoint: {every: 1, keep: 9, keep_best_by: validation/score_mean}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    write_run_file(folder)
    with (folder / "run.yaml").open("a") as file:
        file.write(VALIDATION)
    assert main(["train", str(folder / "run.yaml"), "--no-probe", "steps=2"]) == 0
    return folder


def told_by_training(folder: Path) -> dict[int, dict[str, Any]]:
    lines = (folder / "run" / "validation.jsonl").read_text("utf-8").splitlines()
    return {line["version"]: unpaid(line["overall"]) for line in map(json.loads, lines)}


def unpaid(figures: dict[str, Any]) -> dict[str, Any]:
    """Without what was paid: the second evaluation of a checkpoint is free."""
    return {name: value for name, value in figures.items() if name != "cost_usd"}


def evaluated(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["eval", str(folder / "run.yaml"), "--no-probe", "--json", *arguments]) == 0
    said = json.loads(capsys.readouterr().out)
    return {**said, "overall": unpaid(said["overall"])}


def test_a_checkpoint_an_exported_folder_and_the_model_itself_have_the_figures_that_training_told(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = told_by_training(trained)
    assert sorted(told) == [0, 1, 2]
    model = evaluated(trained, capsys)
    assert (model["version"], model["overall"]) == (0, told[0])
    latest = evaluated(trained, capsys, "--checkpoint", "latest")
    assert (latest["version"], latest["overall"]) == (2, told[2])
    best = evaluated(trained, capsys, "--checkpoint", "best")
    assert best["overall"]["score_mean"] == max(one["score_mean"] for version, one in told.items() if version)
    one = evaluated(trained, capsys, "--checkpoint", str(trained / "run" / "checkpoints" / "step_000001"))
    assert (one["version"], one["overall"]) == (1, told[1])
    assert main(["export", str(trained / "run"), str(tmp_path / "model")]) == 0
    exported = evaluated(trained, capsys, "--checkpoint", str(tmp_path / "model"), "--out", str(tmp_path / "out"))
    assert exported["overall"] == told[2]


def test_the_same_evaluation_is_paid_for_once_and_the_run_is_not_touched(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained / "run"
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    first = evaluated(trained, capsys, "--checkpoint", "latest", "--out", str(tmp_path / "out"))
    num_calls = len(calls_in(trained))
    second = evaluated(trained, capsys, "--checkpoint", "latest", "--out", str(tmp_path / "out"))
    assert (first["calls"], second["calls"]) == (10, 0)
    assert len(calls_in(trained)) == num_calls
    assert second["overall"]["score_mean"] == first["overall"]["score_mean"]
    rollouts = (tmp_path / "out" / "validation_rollouts.jsonl").read_text("utf-8").splitlines()
    assert len(rollouts) == 10
    assert before == {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}


def test_the_directory_of_a_training_run_is_refused_as_the_place_of_an_evaluation(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (trained / "run" / "validation.jsonl").read_bytes()
    assert main(["eval", str(trained / "run.yaml"), "--no-probe", "--out", str(trained / "run")]) == 2
    assert "--out must be a directory of the evaluation's own" in capsys.readouterr().err
    assert (trained / "run" / "validation.jsonl").read_bytes() == before


def test_a_table_tells_each_figure_and_where_the_verdicts_are(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(trained / "run.yaml"), "--checkpoint", "latest", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    for label in (
        "prompts",
        "scored",
        "failed",
        "passed",
        "pass@1",
        "pass@2",
        "tokens",
        "copy_digits",
        "after 2 steps",
    ):
        assert label in said
    assert "for 10 calls" in said


def test_data_of_its_own_can_be_given_on_the_command_line(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"prompt": f"{i}=", "ground_truth": str(i), "data_source": "ab"[i % 2]} for i in range(4)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    data = f"validation.data={{path: {tmp_path / 'test.jsonl'}}}"
    said = evaluated(trained, capsys, data, "--out", str(tmp_path / "out"))
    assert said["overall"]["num_prompts"] == 4
    assert {source: figures["num_prompts"] for source, figures in said["by_source"].items()} == {"a": 2, "b": 2}
    assert main(["eval", str(trained / "run.yaml"), data, "--out", str(tmp_path / "out")]) == 0
    assert "\nall " in capsys.readouterr().out


def test_a_reward_that_never_answers_is_exit_code_3_and_no_zero(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reward = f"reward={trained / 'rewards.py'}:unclear"
    arguments = [str(trained / "run.yaml"), reward, "--no-probe", "--json", "--out", str(tmp_path / "out")]
    assert main(["eval", *arguments]) == 3
    overall = json.loads(capsys.readouterr().out)["overall"]
    assert (overall["score_mean"], overall["num_failed"], overall["failed/unparsable"]) == (None, 10, 10)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["validation=null", "checkpoint.keep_best_by=null"], "an evaluation needs prompts"),
        (["--checkpoint", "nowhere"], "--checkpoint must be latest, best, a checkpoint, a run's directory"),
        (["--checkpoint", "best", "run_dir=elsewhere"], "--checkpoint best needs a checkpoint with a score"),
        (["validation.pass_at=[4]"], "validation.pass_at must not exceed rollouts"),
        (["validation.temperature=0"], "validation.rollouts must be 1 with temperature 0"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    trained: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(trained / "run.yaml"), *arguments]) == 2
    assert told in capsys.readouterr().err
