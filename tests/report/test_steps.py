"""Steps as a run's files tell them."""

from __future__ import annotations

from pathlib import Path

import pytest
from written_runs import metrics_line, totals_line, write_lines, write_run

from rewardflow.errors import InvalidInput
from rewardflow.observe.run_directory import RunDirectory
from rewardflow.report.steps import LimitRange, read_step_rows


def test_a_step_is_known_from_its_trainer_and_from_its_agent(tmp_path: Path) -> None:
    rows = read_step_rows(write_run(tmp_path / "run"))
    assert [row.step for row in rows] == [0, 1, 2]
    trained, judged = rows[1].trained, rows[1].judged
    assert trained is not None
    assert judged is not None
    assert (trained.duration_s, trained.ended_s, trained.exposed_s, trained.hidden_s) == (10.0, 120.0, 3.0, 5.0)
    assert [spread.p50 for spread in trained.mini_batch_latency_s] == [1.0, 3.0]
    assert (judged.rollouts, judged.scored, judged.failed) == (2, 1, {"timeout": 1.0})
    assert (judged.calls, judged.retries, judged.cost_usd, judged.tokens) == (3, 1, 0.75, 300)
    assert judged.outcomes == {"rate_limited": 1.0, "scored": 1.0, "timeout": 1.0}
    assert judged.in_flight is not None
    assert sum(judged.in_flight.calls) * judged.in_flight.width_s == pytest.approx(6.0)
    assert rows[1].figure("kl") == 0.1
    assert rows[1].figure("no such") is None


def test_a_run_without_a_trainer_has_judged_steps_alone(tmp_path: Path) -> None:
    rows = read_step_rows(write_run(tmp_path / "run", with_trainer=False))
    assert all(row.trained is None and row.judged is not None for row in rows)


def test_a_run_of_another_trainer_may_lack_most_fields(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run")
    write_lines(directory.metrics_path, [{"v": 1, "step": 4, "source": "train", "reward/mean": 0.5}])
    write_lines(directory.steps_path, [{"v": 1, "step": 4, "source": "reward", "rollouts": 3}])
    (row,) = read_step_rows(directory)
    assert row.figure("reward/mean") == 0.5
    assert row.judged is not None
    assert (row.judged.rollouts, row.judged.latency_s.count, row.judged.in_flight) == (3, 0, None)


def test_limits_are_known_by_account_and_governor(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run")
    limits = {"pace": {"changes": 2, "min": 300.0, "max": 600.0, "last": None}}
    account = {"limits": limits, "breakers_opened": 2, "breakers": {"a": "open", "b": "closed"}, "outages": 1}
    write_lines(directory.steps_path, [{**totals_line(0), "accounts": {"judge": account}}])
    judged = read_step_rows(directory)[0].judged
    assert judged is not None
    assert judged.limits == {("judge", "pace"): LimitRange(low=300.0, high=600.0, last=None)}
    assert (judged.breakers_opened, judged.breakers_open, judged.outages) == (2, 1, 1)


def test_a_field_of_the_wrong_kind_names_its_file_and_line(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run")
    write_lines(directory.metrics_path, [metrics_line(0), metrics_line(1, busy_s=[1, 2])])
    with pytest.raises(InvalidInput, match=r"metrics\.jsonl, line 2: busy_s must be an object"):
        read_step_rows(directory)
