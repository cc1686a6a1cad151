"""Small pictures and numbers for people."""

from __future__ import annotations

import logging
import sys

import pytest

from rewardflow.cli.display import bar, dollars, duration, logging_to_stderr, sparkline, stderr_console


def test_a_library_that_writes_its_warnings_itself_is_not_written_twice(capsys: pytest.CaptureFixture[str]) -> None:
    talkative, quiet = logging.getLogger("talkative.part"), logging.getLogger("quiet.part")
    own = logging.StreamHandler(sys.stderr)
    logging.getLogger("talkative").addHandler(own)
    stderr_console.cache_clear()
    try:
        with logging_to_stderr(0):
            talkative.warning("a line of a library")
            quiet.warning("a line of another")
    finally:
        logging.getLogger("talkative").removeHandler(own)
        stderr_console.cache_clear()
    told = capsys.readouterr().err
    assert (told.count("a line of a library"), told.count("a line of another")) == (1, 1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 ms"), (0.0994, "99 ms"), (0.0996, "0.1 s"), (9.94, "9.9 s"), (9.96, "10 s"), (119.4, "119 s"),
     (119.6, "2 min 0 s"), (812.0, "13 min 32 s"), (7199.0, "119 min 59 s"), (9000.0, "2 h 30 min")],
)  # fmt: skip
def test_a_duration_has_the_unit_that_fits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_spark_line_shows_each_value_as_its_share_of_the_largest() -> None:
    assert sparkline([0, 1, 2, 4, 8, 7]) == "▁▂▃▅█▇"
    assert sparkline([0, 7], ascii_only=True) == ".@"
    assert sparkline([0, 0, 0]) == "▁▁▁"
    assert sparkline([]) == ""


def test_a_bar_is_empty_only_for_nothing() -> None:
    assert bar(0.5, 10) == "█" * 5
    assert bar(1e-9, 10, ascii_only=True) == "#"
    assert bar(0.0, 10) == ""


@pytest.mark.parametrize(
    ("usd", "text"), [(0.0, "$0.00"), (0.0034, "$0.0034"), (1.005, "$1.00"), (12345.6, "$12,345.60")]
)
def test_small_amounts_are_told_in_fractions_of_cents(usd: float, text: str) -> None:
    assert dollars(usd) == text
