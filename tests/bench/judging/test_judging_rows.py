"""`bench judging` yields a row with a bar for each promise; a server is asked only if one is named."""

from __future__ import annotations

import pytest

from rewardflow.bench.judging import judging_rows
from rewardflow.cli.main import main
from rewardflow.mock_judge import MockJudge, MockJudgeSettings


def test_every_promise_has_a_row_and_a_bar() -> None:
    rows = [*judging_rows._escalation_rows(1), *judging_rows._audit_rows(3, 2)]
    bars = {row.name: row.bar for row in rows}
    assert len(rows) == 6
    assert bars["calls of the dear judge in an escalation"] == "<= 0.3"
    assert [name for name in bars if name.startswith("false alarms")]


def test_a_server_is_for_this_benchmark_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "agent", "--judge-url", "http://127.0.0.1:9"]) == 2
    assert "--judge-url is for bench judging" in capsys.readouterr().err


def test_a_server_without_a_cache_computes_every_token() -> None:
    with MockJudge(MockJudgeSettings()) as mock:
        row = next(judging_rows.run_judging_benchmarks(judge_url=mock.url, judge_model="mock-judge"))
    assert row.name == "prompt tokens computed for a group of eight"
    assert row.ratio is not None
    assert row.ratio > 0.9
    assert row.bar == "<= 0.45"
