"""`rewardflow rejudge`: a run's rollouts under another judge, resumable, and a section of the run's page."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import rewardflow as rf
from rewardflow.cli.main import main

REWARD = """
import pathlib
import rewardflow as rf

CALLS = pathlib.Path(__file__).with_name("calls.txt")


async def other(response):
    with CALLS.open("a") as file:
        file.write("x")
    rf.report_usage(cost_usd=0.25)
    return 1.0 - float(response)


class Loaded:
    def __init__(self):
        print("a model is loaded")

    def compute_score(self, response):
        return 1.0 - float(response)
"""


async def first(response: str) -> float:
    return float(response)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rewards.py").write_text(REWARD, "utf-8")
    rollouts = [
        rf.Rollout(group_id=f"q{i}", step=step, index=j, group_size=2, prompt="?", response=str(0.25 * j + 0.1 * step))
        for step in range(3)
        for i in range(2)
        for j in range(2)
    ]

    async def run() -> None:
        async with rf.RewardAgent(first, run_dir=tmp_path / "run", journal=tmp_path / "run" / "journal.db") as agent:
            await agent.submit(rollouts).all()

    asyncio.run(run())
    return tmp_path


def num_calls(folder: Path) -> int:
    return len((folder / "calls.txt").read_text())


def test_the_figures_are_told_and_the_page_of_the_run_shows_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rejudge", "run", "--reward", "rewards.py:other", "--name", "strict", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["correlation"]["value"] == pytest.approx(-1.0)
    assert told["sign_changes"]["value"] == 1.0
    assert told["best_changes"]["value"] == 1.0
    assert [one["rollouts"] for one in told["steps"]] == [4, 4, 4]
    assert main(["report", "run"]) == 0
    page = (folder / "run" / "report.html").read_text("utf-8")
    assert "Under other judges" in page
    assert "Mean score, and under strict" in page


def test_the_same_command_pays_for_nothing_twice(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rejudge", "run", "--reward", "rewards.py:other", "--groups", "2"]) == 0
    assert num_calls(folder) == 4
    assert main(["rejudge", "run", "--reward", "rewards.py:other"]) == 0
    assert num_calls(folder) == 12
    capsys.readouterr()
    assert main(["rejudge", "run", "--reward", "rewards.py:other", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cost_usd"] == 12 * 0.25  # in all sessions
    assert num_calls(folder) == 12
    assert main(["rejudge", "run", "--reward", "rewards.py:other", "--steps", "1:1"]) == 0
    assert num_calls(folder) == 12
    assert "sign changes" in capsys.readouterr().out


def test_what_a_reward_prints_whenever_it_is_built_stays_out_of_the_json(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rejudge", "run", "--reward", "rewards.py:Loaded", "--json"]) == 0
    said, told = capsys.readouterr()
    assert json.loads(said)["rollouts"] == 12
    assert "a model is loaded" in told


def test_a_folder_that_is_no_run_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rejudge", ".", "--reward", "rewards.py:other"]) == 2
    assert capsys.readouterr().err


def test_a_broken_record_is_an_error_with_its_place(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "run" / "rejudged").mkdir()
    (folder / "run" / "rejudged" / "x.json").write_text("[1]", "utf-8")
    assert main(["report", "run"]) == 2
    assert "must be a record of `rewardflow rejudge`" in capsys.readouterr().err


def test_a_run_of_which_only_failures_are_left_has_its_figures_again(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = "import rewardflow as rf\n\n\nasync def other(response):\n"
    error = 'rf.ServiceError("down", retryable=False)'
    (folder / "dead.py").write_text(f"{head}    raise {error}\n")
    assert main(["rejudge", "run", "--reward", "dead.py:other"]) == 2  # nobody ever answered
    told = " ".join(capsys.readouterr().err.split())
    assert "must be reachable, all of the first" in told
    assert "down" in told
    assert "--no-probe" not in told  # which this command does not have
    some = f"{head}    if float(response) in (0.25, 0.35, 0.45):\n        raise {error}\n    return 1.0\n"
    (folder / "some.py").write_text(some)
    for _ in range(2):
        assert main(["rejudge", "run", "--reward", "some.py:other", "--json"]) == 3
        told_json = json.loads(capsys.readouterr().out)
        assert (told_json["rollouts"], told_json["failed"]) == (6, 6)
