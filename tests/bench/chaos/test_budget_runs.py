"""Random runs under a cap never pass it where an upper bound is known, and never the stated bound elsewhere."""

from __future__ import annotations

import os

import pytest

from rewardflow.bench.chaos.budget_runs import PRICES, BudgetRun, describe_runs, main, make_budget_run, make_budget_runs

NUM_RUNS = int(os.environ.get("REWARDFLOW_BUDGET_RUNS", "90"))  # 1000 for all of them


@pytest.fixture(scope="module")
def runs() -> list[BudgetRun]:
    return list(make_budget_runs(NUM_RUNS))


def test_where_an_upper_bound_is_known_true_spending_never_passes_the_cap(runs: list[BudgetRun]) -> None:
    bounded = [run for run in runs if run.price != "unknown"]
    assert [run for run in bounded if run.charged_usd > run.cap_usd * (1 + 1e-6)] == []


def test_where_no_bound_is_known_true_spending_never_passes_the_stated_bound(runs: list[BudgetRun]) -> None:
    assert [run for run in runs if not run.is_kept] == []


def test_the_runs_hold_restarts_kills_and_charges(runs: list[BudgetRun]) -> None:
    for price in PRICES:
        some = [run for run in runs if run.price == price]
        assert sum(run.num_kills for run in some) > len(some) / 4
        assert sum(run.num_calls for run in some) > 5 * len(some)


def test_the_same_seed_makes_the_same_run() -> None:
    assert make_budget_run(7) == make_budget_run(7)


def test_the_command_names_the_runs_that_broke_their_bound(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--runs", "3", "--seed", "5"]) == 0
    assert capsys.readouterr().out.count("bound broken in 0") == 3
    broken = BudgetRun(
        seed=4,
        price="set",
        cap_usd=1.0,
        charged_usd=2.0,
        bound_usd=1.0,
        num_calls=2,
        num_sessions=1,
        num_kills=0,
    )
    assert "bound broken in 1 [4]" in next(describe_runs([broken]))
