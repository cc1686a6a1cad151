"""Tables in narrow terminals."""

from __future__ import annotations

from rewardflow.cli.narrow_table import fitted
from rewardflow.cli.plan import FIRST_TO_GO
from rewardflow.plan.formatting import HEADINGS

HEADS = ("schedule", "step", "busy", "binds")
ROWS = [("pipeline_one_step", "96.0 s", "100%", "service slots"), ("synchronous", "148.4 s", "65%", "compute")]


def test_a_table_with_room_keeps_every_column() -> None:
    table = fitted(HEADS, ROWS, width=80, first_to_go=("busy", "binds"))
    assert (table.headings, table.rows, table.left_out) == (HEADS, tuple(ROWS), ())
    exact = fitted(HEADS, ROWS, width=17 + 7 + 4 + 13 + 3 * 2, first_to_go=("busy", "binds"))
    assert exact.left_out == ()


def test_the_least_wanted_columns_go_whole_and_only_as_many_as_needed() -> None:
    table = fitted(HEADS, ROWS, width=41, first_to_go=("busy", "binds"))
    assert (table.headings, table.left_out) == (("schedule", "step", "binds"), ("busy",))
    assert table.rows[0] == ("pipeline_one_step", "96.0 s", "service slots")
    table = fitted(HEADS, ROWS, width=30, first_to_go=("busy", "binds"))
    assert table.headings == ("schedule", "step")


def test_columns_that_may_not_go_stay_in_any_terminal() -> None:
    assert fitted(HEADS, ROWS, width=5, first_to_go=("binds",)).headings == ("schedule", "step", "busy")


def test_a_plans_rows_fit_into_80_columns_with_name_time_change_and_price() -> None:
    """The widest texts that a plan of a long run writes."""
    row = ("pipeline_one_step", "1,234.5 s", "-123.4%", "1,234.5 s", "100%", "10", "5,120", "$123.45", "123 h 45 min")
    row = (*row, "$12,345.67", "service slots")
    table = fitted(HEADINGS, [row], width=80, first_to_go=FIRST_TO_GO)
    assert {"schedule", "step", "change", "run", "run cost"} <= set(table.headings)
    assert sum(map(len, table.rows[0])) + 2 * (len(table.headings) - 1) <= 80
