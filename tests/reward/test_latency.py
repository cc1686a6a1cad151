"""Named distributions of latency."""

from __future__ import annotations

import contextlib
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_entries import an_entry

from rewardflow.errors import InvalidInput, RewardflowError
from rewardflow.reward.journal.database import open_for_writing
from rewardflow.reward.journal.verdict_rows import insert, row_of
from rewardflow.reward.latency import parse_latency
from rewardflow.types import Reward

EVENLY = [(number + 0.5) / 1000 for number in range(1000)]


def write_journal(path: Path, *latencies: tuple[float, int]) -> None:
    entries = [
        an_entry(number, Reward(value=0.5, latency_s=latency_s, attempts=attempts), group_id=str(number))
        for number, (latency_s, attempts) in enumerate(latencies)
    ]
    with contextlib.closing(open_for_writing(path, lock_timeout_s=0)) as connection:
        if entries:
            insert(connection, [row_of(entry, "full") for entry in entries])


def test_constant_is_always_the_same() -> None:
    assert {parse_latency("constant:2.5")(luck) for luck in EVENLY} == {2.5}


def test_uniform_reaches_from_low_to_high() -> None:
    latency = parse_latency("uniform:1,40")
    assert (latency(0.0), latency(0.5), latency(1.0)) == (1.0, 20.5, 40.0)


def test_lognormal_has_its_median_in_the_middle_and_sigma_as_spread() -> None:
    latency = parse_latency("lognormal:5,1")
    assert latency(0.5) == pytest.approx(5.0)
    assert latency(0.8413447) == pytest.approx(5.0 * 2.7182818, rel=1e-4)


def test_bimodal_is_slow_for_its_share_of_the_calls() -> None:
    seconds = [parse_latency("bimodal:1,30,0.1")(luck) for luck in EVENLY]
    assert sum(second > 10 for second in seconds) == 100
    assert statistics.median(seconds[:900]) == pytest.approx(1.0, rel=0.01)
    assert statistics.median(seconds[900:]) == pytest.approx(30.0, rel=0.01)


def test_bimodal_alone_has_numbers_of_its_own() -> None:
    bare, full = parse_latency("bimodal"), parse_latency("bimodal:1,30,0.1")
    assert [bare(luck) for luck in EVENLY] == [full(luck) for luck in EVENLY]


def test_exponential_has_its_mean() -> None:
    assert statistics.fmean(map(parse_latency("exponential:5"), EVENLY)) == pytest.approx(5.0, rel=0.01)


def test_quantiles_are_met_with_lines_between_them_and_nothing_beyond() -> None:
    latency = parse_latency("quantiles:10=1,50=5,100=25")
    assert [latency(luck) for luck in (0.0, 0.1, 0.3, 0.5, 0.75, 1.0)] == pytest.approx([1, 1, 3, 5, 15, 25])
    assert parse_latency("quantiles:50=5")(0.9) == 5


def test_a_journal_gives_the_quantiles_of_calls_that_needed_one_attempt(tmp_path: Path) -> None:
    write_journal(tmp_path / "run.db", (1.0, 1), (2.0, 1), (3.0, 1), (500.0, 4))
    latency = parse_latency(f"journal:{tmp_path / 'run.db'}")
    assert [latency(luck) for luck in (0.0, 0.25, 0.5, 1.0)] == pytest.approx([1.0, 1.5, 2.0, 3.0])


def test_a_journal_of_retries_alone_is_better_than_none(tmp_path: Path) -> None:
    write_journal(tmp_path / "run.db", (7.0, 3))
    assert parse_latency(f"journal:{tmp_path / 'run.db'}")(0.3) == 7.0


def test_a_journal_without_verdicts_is_refused(tmp_path: Path) -> None:
    write_journal(tmp_path / "run.db")
    with pytest.raises(InvalidInput, match=r"must hold scored verdicts, got none in .*run\.db"):
        parse_latency(f"journal:{tmp_path / 'run.db'}")


def test_a_journal_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RewardflowError, match="nothing"):
        parse_latency(f"journal:{tmp_path / 'nothing.db'}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "normal:1,2",
        "constant",
        "constant:",
        "constant:fast",
        "constant:-1",
        "constant:nan",
        "constant:inf",
        "constant:1,2",
        "uniform:1",
        "uniform:4,1",
        "lognormal:5",
        "bimodal:1,30",
        "bimodal:30,1,0.1",
        "bimodal:1,30,0",
        "bimodal:1,30,1.5",
        "journal:",
        "journal",
        "exponential:1,2",
        "quantiles:",
        "quantiles:50",
        "quantiles:50=1,40=2",
        "quantiles:50=2,90=1",
        "quantiles:50=2,101=3",
        "quantiles:50=2=3",
    ],
)
def test_what_is_no_distribution_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(InvalidInput, match="latency") as caught:
        parse_latency(text)
    assert repr(text) in str(caught.value)


@given(
    text=st.sampled_from(
        ["constant:3", "uniform:1,40", "lognormal:5,1", "bimodal:1,30,0.2", "exponential:5", "quantiles:0=1,90=4,99=30"]
    ),
    lucks=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_more_luck_is_never_faster_and_nothing_takes_for_ever(text: str, lucks: tuple[float, float]) -> None:
    latency = parse_latency(text)
    less, more = sorted(lucks)
    assert 0 <= latency(less) <= latency(more) < 1000
