"""`rewardflow init`: files that work as they are."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from rewardflow.cli.main import main
from rewardflow.cli.setup import init
from rewardflow.cli.setup.starter_files import CASES
from rewardflow.mock_judge import MockJudge, MockJudgeSettings
from rewardflow.services.reward_file import load_reward_file
from rewardflow.settings.run_file import load_run


@pytest.mark.parametrize("case", list(CASES))
def test_the_files_of_each_case_are_a_run_with_its_reward(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new"
    assert main(["init", str(folder), "--case", case]) == 0
    said = capsys.readouterr().out
    assert f"rewardflow train {folder / 'run.yaml'} --check" in said
    assert ("rewardflow mock-judge --port 8077" in said) == (case != "function")
    reward = load_run(folder / "run.yaml").reward
    if case == "function":
        assert reward == f"{folder / 'reward.py'}:compute_score"
    else:
        assert load_reward_file(str(reward)).parts


def test_the_function_of_a_new_run_passes_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path), "--case", "function"]) == 0
    assert main(["train", str(tmp_path / "run.yaml"), "--check"]) == 0
    assert "\nsample " in f"\n{capsys.readouterr().out}"


def test_the_cap_of_a_new_run_is_enough_for_all_of_its_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MockJudge(MockJudgeSettings(scores="graded")) as judge:
        assert main(["init", str(tmp_path), "--case", "judge", "--url", judge.url]) == 0
        capsys.readouterr()
        assert main(["train", str(tmp_path / "run.yaml"), "--check", "--json"]) == 0
        cost = json.loads(capsys.readouterr().out)["cost"]
        assert cost["a_run_usd"] < 0.8 * cost["cap_usd"]  # the cap also counts what calls in flight could cost
        assert main(["train", str(tmp_path / "run.yaml"), "--check", "limits.max_cost_usd=1"]) == 0
        assert "$1.00  at most (limits.max_cost_usd): the run would end in step 2" in capsys.readouterr().out


def test_a_real_judge_is_named_by_flags(tmp_path: Path) -> None:
    flags = ["--model", "gpt-5-mini", "--url", "https://api.openai.com/v1", "--key-env", "OPENAI_API_KEY"]
    assert main(["init", str(tmp_path), "--case", "judge", *flags]) == 0
    text = (tmp_path / "judge.yaml").read_text("utf-8")
    assert "model: gpt-5-mini\nbase_urls: [https://api.openai.com/v1]\napi_key_env: OPENAI_API_KEY\n" in text


@pytest.mark.parametrize("key", ["", "secret"])
def test_a_key_that_is_not_set_yet_is_among_what_comes_next(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", key)
    assert (
        main(["init", str(tmp_path), "--case", "judge", "--url", "http://127.0.0.1:9/v1", "--key-env", "JUDGE_KEY"])
        == 0
    )
    said = capsys.readouterr().out
    assert ("  export JUDGE_KEY=..." in said) == (key == "")
    assert "secret" not in said


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--case", "function", "--model", "m"], "are about a judge"),
        ([], "--case must be one of function, judge, rule-and-judge, got none"),
    ],
)
def test_a_mistake_writes_nothing(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main(["init", str(tmp_path), *arguments]) == 2
    assert told in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.yaml").write_text("mine")
    assert main(["init", str(tmp_path), "--case", "function"]) == 2
    assert "already has run.yaml" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


def test_on_a_terminal_it_asks_for_the_kind_of_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO("7\n3\n")
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    assert init._asked_case() == "rule-and-judge"
