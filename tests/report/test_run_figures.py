"""A run in a few figures, against figures computed by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import orjson
import pytest
from written_runs import totals_line, write_lines, write_run

from rewardflow.observe.histogram import Histogram
from rewardflow.report.run_data import read_run
from rewardflow.report.run_figures import RunFigures, binding_of, figures_of


def histogram_of(*values: float) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram


@pytest.fixture
def figures(tmp_path: Path) -> RunFigures:
    return figures_of(read_run(write_run(tmp_path / "run").path).steps)


def test_three_steps_add_up(figures: RunFigures) -> None:
    assert (figures.num_trained, figures.total_s, figures.step_s) == (3, 30.0, 10.0)
    assert figures.seconds_by_kind == {"generate": 12.0, "update": 6.0, "reward": 9.0, "other": 3.0}
    assert (figures.exposed_s, figures.hidden_s) == (9.0, 15.0)
    assert (figures.exposed_share, figures.busy_share) == (0.3, 0.6)
    assert (figures.score_first, figures.score_last) == (0.25, 0.75)
    assert (figures.rollouts, figures.scored, figures.failed) == (6, 3, {"timeout": 3.0})
    assert figures.failed_share == 0.5
    assert (figures.calls, figures.retries, figures.hedges) == (9, 3, 0)
    assert figures.outcomes == {"rate_limited": 3.0, "scored": 3.0, "timeout": 3.0}
    assert (figures.cost_usd, figures.tokens, figures.dropped) == (2.25, 900, {"equal_scores": 3.0})
    assert (figures.latency_s.count, figures.latency_s.mean, figures.waited_s.mean) == (6, 3.0, 1.0)


def test_money_is_the_trainers_where_no_agent_wrote(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run")
    directory.steps_path.unlink()
    figures = figures_of(read_run(directory.path).steps)
    assert (figures.cost_usd, figures.calls, figures.failed) == (1.5, 0, {"timeout": 3.0})


def test_what_validations_cost_is_part_of_the_whole_and_told_apart(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run")
    write_lines(directory.steps_path, [{**totals_line(step), "source": "validation"} for step in (0, 3)])
    figures = figures_of(read_run(directory.path).steps)
    assert (figures.cost_usd, figures.validation_cost_usd, figures.validation_calls) == (3.75, 1.5, 6)
    assert (figures.calls, figures.rollouts) == (9, 6)  # of training alone


def test_without_the_agents_totals_validations_tell_their_cost_themselves(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run")
    measured = {"v": 1, "step": 3, "source": "validation", "validation/cost_usd": 0.5}
    write_lines(directory.metrics_path, [measured])
    figures = figures_of(read_run(directory.path).steps)
    assert (figures.cost_usd, figures.validation_cost_usd) == (2.75, 0.5)


def test_without_steps_nothing_is_known() -> None:
    figures = figures_of([])
    assert (figures.step_s, figures.exposed_share, figures.failed_share, figures.score_last) == (None,) * 4
    assert binding_of(figures).name == "unknown"


def test_the_learnt_rate_is_the_median_of_each_account_added_up(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", steps=0)
    lines = []
    for step, last in enumerate((100.0, 300.0, 200.0)):
        pace = {"pace": {"min": 1.0, "max": 900.0, "last": last}, "concurrency": {"min": 1, "max": 9, "last": 5}}
        lines.append({**totals_line(step), "accounts": {"a": {"limits": pace}, "b": {"limits": pace}}})
    write_lines(directory.steps_path, lines)
    assert figures_of(read_run(directory.path).steps).learnt_rpm == 400.0


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"seconds_by_kind": {"update": 29.0, "reward": 1.0}}, "compute"),
        ({"seconds_by_kind": {"update": 10.0, "generation": 20.0}}, "generation"),
        ({"waited_s": histogram_of(9.0)}, "rate limit"),
        ({"waited_s": histogram_of(9.0), "outcomes": {"scored": 9.0}}, "service slots"),
        # 9 calls in 30 s are 18 a minute
        ({"waited_s": histogram_of(9.0), "outcomes": {"scored": 9.0}, "learnt_rpm": 20.0}, "rate limit"),
        ({"waited_s": histogram_of(9.0), "outcomes": {"scored": 9.0}, "learnt_rpm": 90.0}, "service slots"),
        ({"latency_s": histogram_of(*[10.0] * 98, 300.0, 400.0)}, "slow tail"),
        ({"latency_s": histogram_of(4.0, 5.0, 6.0)}, "judge latency"),
    ],
)
def test_what_binds_is_read_off_the_figures(figures: RunFigures, changes: dict[str, Any], name: str) -> None:
    assert binding_of(dataclasses.replace(figures, **changes)).name == name


def test_figures_are_json(figures: RunFigures) -> None:
    told = orjson.loads(orjson.dumps(figures.to_json()))
    assert (told["exposed_share"], told["calls"], told["latency_s"]["count"]) == (0.3, 9, 6)
    assert told["binding"]["name"]
