"""When a run must end so that it is saved in time."""

from __future__ import annotations

from rewardflow.runtime.checkpointing import TimeBudget


def test_without_a_limit_time_is_never_up() -> None:
    budget = TimeBudget(None, started_s=0.0)
    budget.stepped(1e9)
    assert not budget.is_up(1e12)


def test_time_is_up_while_another_step_like_the_longest_and_a_save_would_fit() -> None:
    budget = TimeBudget(1.0, started_s=100.0)
    budget.stepped(200.0)
    budget.stepped(50.0)
    budget.saved(100.0)
    budget.saved(10.0)
    assert not budget.is_up(100.0 + 3600 - 361)
    assert budget.is_up(100.0 + 3600 - 359)
