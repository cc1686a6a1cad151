"""`rewardflow judge test`: judges and labelled answers in, figures and a page out; nothing is paid for twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rewardflow as rf
from rewardflow.cli.judge.paid_costs import with_paid_costs
from rewardflow.cli.main import main
from rewardflow.judging.probes import ATTACKS
from rewardflow.mock_judge import MockJudge, MockJudgeSettings

REWARDS = """
import pathlib
import rewardflow as rf

CALLS = pathlib.Path(__file__).with_name("calls.txt")


async def right(response, ground_truth):
    with CALLS.open("a") as file:
        file.write("x")
    rf.report_usage(cost_usd=0.01)
    return float(response.startswith(ground_truth))


async def also_right(response, ground_truth):
    return await right(response, ground_truth)


def long(response):
    return min(len(response) / 100, 1.0)


class Ranking:
    async def score_group(self, rollouts):
        order = sorted(range(len(rollouts)), key=lambda i: rollouts[i].response)
        return [{"score": order.index(i) / len(rollouts), "shown_as": i + 1} for i in range(len(rollouts))]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rewards.py").write_text(REWARDS, "utf-8")
    rows = [
        {"group_id": f"q{i}", "prompt": "6 * 7?", "response": response, "ground_truth": "42", "label": label}
        for i in range(5)
        for response, label in (("42", 1), ("41 " * (i + 1), 0), ("42 and so on", 1))
    ]
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return tmp_path


def judged(
    capsys: pytest.CaptureFixture[str], *judges: str, probes: int, options: tuple[str, ...] = ()
) -> tuple[int, dict[str, Any]]:
    code = main(["judge", "test", *judges, "labels.jsonl", "--json", "--probes", str(probes), *options])
    return code, json.loads(capsys.readouterr().out)


def test_judges_are_compared_side_by_side(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = judged(capsys, "rewards.py:right", "rewards.py:long", "rewards.py:Ranking", probes=2)
    assert code == 0
    right, long, ranking = told["judges"]
    assert right["accuracy"]["value"] == 1.0
    assert right["cost_of_answers_usd"] == pytest.approx(0.15)
    assert long["padding_shift"]["value"] > 0.5
    assert ranking["position_bias"] is not None
    assert ranking["equal_share"] == 1.0
    page = (folder / "judge_test.html").read_text("utf-8")
    assert "rewards.py:right" in page
    assert "Worst disagreements of rewards.py:long" in page


def test_a_cap_holds_for_all_judges_of_the_command_together_and_when_it_starts_again(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judges = ("rewards.py:right", "rewards.py:also_right", "rewards.py:long")
    options = ("--max-cost-usd", "0.2", "--call-cost-usd", "0.01")
    for _ in range(2):
        code, told = judged(capsys, *judges, probes=0, options=options)
        assert code == 3
        assert [one["scored"] for one in told["judges"]][:2] == [15, 5]
        assert len((folder / "calls.txt").read_text()) == 20


def test_what_a_later_judge_has_spent_before_counts_for_an_earlier_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--max-cost-usd", "0.2", "--call-cost-usd", "0.01")
    judged(capsys, "rewards.py:also_right", probes=0, options=options)
    _, told = judged(capsys, "rewards.py:right", "rewards.py:also_right", probes=0, options=options)
    assert [one["scored"] for one in told["judges"]] == [5, 15]
    assert len((folder / "calls.txt").read_text()) == 20


def test_costs_are_those_of_the_session_if_the_journal_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(REWARDS, "utf-8")
    (tmp_path / "journal.db").write_bytes(b"not a journal " * 100)
    rewards = {(0, "q", 0): rf.Reward(value=1.0, cost_usd=0.5)}
    found = with_paid_costs(rewards, f"{tmp_path}/rewards.py:right", journal=tmp_path / "journal.db", run="r")
    assert found == rewards


def test_the_same_command_pays_for_nothing_twice(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, first = judged(capsys, "rewards.py:right", probes=1)
    num_calls = len((folder / "calls.txt").read_text())
    assert num_calls == 15 + 1 + 1 + len(ATTACKS)
    _, again = judged(capsys, "rewards.py:right", probes=1)
    assert len((folder / "calls.txt").read_text()) == num_calls
    assert again["judges"][0]["kappa"] == first["judges"][0]["kappa"]
    assert again["judges"][0]["cost_usd"] == pytest.approx(first["judges"][0]["cost_usd"]) == 0.01 * num_calls
    assert again["judges"][0]["cost_of_answers_usd"] == pytest.approx(0.15)


def test_an_llm_judge_of_a_file_is_tested_over_http(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with MockJudge(MockJudgeSettings(scores="exact")) as mock:
        (folder / "judge.yaml").write_text(
            f"reward: llm_judge\nmodel: mock-judge\nbase_urls: ['{mock.url}']\n"
            "prices: {input_usd_per_million: 1.0, output_usd_per_million: 1.0}\n",
            "utf-8",
        )
        code = main(["judge", "test", "judge.yaml", "labels.jsonl", "--probes", "1"])
    out = capsys.readouterr().out
    assert code == 0
    assert "kappa" in out
    assert "judge_test.html" in out


def test_answers_without_a_verdict_make_the_exit_code_3(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "rewards.py").write_text("def never(response):\n    return None\n", "utf-8")
    code, told = judged(capsys, "rewards.py:never", probes=0)
    assert (code, told["judges"][0]["failed"]) == (3, {"unparsable": 15})
    assert told["judges"][0]["accuracy"] is None


@pytest.mark.parametrize(
    ("args", "rule"),
    [
        (["--scale", "5"], "--scale must be LOW:HIGH, got '5'"),
        (["--threshold", "0"], "--threshold must lie in (0, 1], got 0.0"),
        (["--out", "nowhere/page.html"], "--out must lie in a folder that exists"),
        (["--label", "stars"], "stars must be a number"),
        (["--probes", "-1"], "at least 0, got -1"),
    ],
)
def test_bad_usage_is_told_before_any_call(
    args: list[str], rule: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["judge", "test", "rewards.py:right", "labels.jsonl", *args]) == 2
    assert rule in capsys.readouterr().err
    assert not (folder / "calls.txt").exists()


def test_a_judge_that_is_given_twice_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", "test", "rewards.py:right", "rewards.py:right", "labels.jsonl"]) == 2
    assert "each judge must be given once" in capsys.readouterr().err
