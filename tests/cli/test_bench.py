"""The benchmark's table and JSON; the figures themselves are measured by hand, not by tests."""

from __future__ import annotations

import io
from collections.abc import Iterator

import orjson
import pytest
from rich.console import Console

from rewardflow.bench.benchmark_row import BenchmarkRow
from rewardflow.cli.bench import holds, write_json, write_table
from rewardflow.cli.main import main
from rewardflow.errors import InvalidInput

NEAR = BenchmarkRow(
    name="all verdicts", value=4.2, unit="s", yardstick=4.0, yardstick_name="bound", bar="<= 1.10", bar_on="ratio"
)
SLOW = BenchmarkRow(name="verdicts a second", value=29_000.0, unit="1/s", yardstick=99_000.0, bar=">= 30,000")
FREE = BenchmarkRow(name="calls", value=20_000, unit="calls")


@pytest.mark.parametrize(
    ("value", "yardstick", "bar", "bar_on", "expected"),
    [
        (4.2, 4.0, "<= 1.05", "ratio", True),
        (4.3, 4.0, "<= 1.05", "ratio", False),
        (4.2, 4.0, "<= 1.05", "value", False),
        (30_000.0, 90_000.0, ">= 30,000", "value", True),
        (29_999.0, None, ">= 30,000", "value", False),
        (0.02, None, "<= 0.02", "value", True),
        (0.02, None, "<= 0.02", "ratio", None),
        (1.0, 1.0, "", "value", None),
    ],
)
def test_a_bar_is_held_against_the_ratio_or_the_value(
    value: float, yardstick: float | None, bar: str, bar_on: str, expected: bool | None
) -> None:
    row = BenchmarkRow(name="x", value=value, unit="s", yardstick=yardstick, bar=bar, bar_on=bar_on)  # type: ignore[arg-type]
    assert holds(row) is expected


def test_a_bar_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(InvalidInput, match="about 3"):
        holds(BenchmarkRow(name="x", value=1.0, unit="s", bar="about 3"))


def test_rows_are_shown_as_they_arrive() -> None:
    file = io.StringIO()

    def rows() -> Iterator[BenchmarkRow]:
        assert "promised" in file.getvalue()
        yield NEAR
        assert "all verdicts" in file.getvalue()
        yield SLOW
        assert "verdicts a second" in file.getvalue()
        yield FREE

    write_table(rows(), Console(file=file, width=120))
    _, *lines = [" ".join(line.split()) for line in file.getvalue().splitlines()]
    assert lines == [
        "all verdicts 4.2 s 4 s bound 1.05 ratio <= 1.10 yes",
        "verdicts a second 29,000 1/s 99,000 1/s 0.293 value >= 30,000 NO",
        "calls 20,000 calls",
    ]


@pytest.mark.parametrize("width", [80, 99, 100, 200])
def test_no_word_is_cut_on_terminals_of_80_columns_and_more(width: int) -> None:
    file = io.StringIO()
    write_table([NEAR, SLOW], Console(file=file, width=width))
    words = file.getvalue().split()
    for word in (*_words(NEAR), *_words(SLOW), "yes", "NO"):
        assert word in words


def _words(row: BenchmarkRow) -> list[str]:
    return [*row.name.split(), *row.yardstick_name.split(), *row.bar.split(), row.bar_on, f"{row.ratio:.3g}"]


def test_json_is_one_object_with_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    write_json(iter([NEAR, FREE]))
    assert orjson.loads(capsys.readouterr().out) == {"rows": [NEAR.to_json(), FREE.to_json()]}
    assert NEAR.to_json()["ratio"] == pytest.approx(1.05)
    assert NEAR.to_json()["bar_on"] == "ratio"


def test_seeds_are_refused_where_nothing_is_trained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "agent", "--seeds", "1"]) == 2
    assert "--seeds is for benchmarks that train" in capsys.readouterr().err


@pytest.mark.parametrize("seeds", ["", "1,", "1;2", "-1", "one"])
def test_seeds_that_are_no_whole_numbers_are_refused(seeds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "schedules", f"--seeds={seeds}"]) == 2
    assert "--seeds must be whole numbers" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--trl-python", "--verl-python"])
def test_an_interpreter_is_refused_where_nobody_else_is_run(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "agent", option, "python"]) == 2
    assert f"{option} is for bench trainer" in capsys.readouterr().err
