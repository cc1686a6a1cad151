"""Writes the figures of judge tests as rows of text, one column for each judge; the page and the terminal share them.

Always true: every row has as many texts as there are tests; a figure that does not exist is a dash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rewardflow.drawing.scales import figure
from rewardflow.judging.agreement import Estimate
from rewardflow.judging.judge_test import JudgeTest


@dataclass(frozen=True, slots=True)
class FigureRow:
    """One figure of all judges. `note` says what is good, and what the figure means."""

    name: str
    texts: tuple[str, ...]
    note: str


def figure_rows(tests: Sequence[JudgeTest]) -> Iterator[FigureRow]:
    def row(name: str, text: Callable[[JudgeTest], str], note: str) -> FigureRow:
        return FigureRow(name, tuple(text(test) for test in tests), note)

    def agreed(key: str) -> Callable[[JudgeTest], str]:
        return lambda test: estimate_text(test.agreement[key])

    yield row("answers scored", lambda test: f"{test.scored:,} of {test.answers:,}", "the others have no verdict")
    yield row("accuracy", agreed("accuracy"), "same side of the threshold as the label")
    yield row("kappa", agreed("kappa"), "the same beyond chance: 0 is chance, 1 is agreement")
    yield row("rank correlation", agreed("spearman"), "of all scores with the labels (Spearman)")
    yield row("pairs in order", agreed("ordered_pairs"), "of two answers to one question; 0.5 is chance")
    yield row("mean error", agreed("mean_error"), "score minus label; above 0: too generous")
    yield row("calibration error", _calibration_error, "0 is best")
    yield row("same score again", lambda test: figure(test.equal_share, "%"), "of answers that were judged twice")
    yield row("distance when repeated", lambda test: _number(test.repeat_distance), "mean of the absolute distance")
    yield row("length bias", lambda test: estimate_text(test.length_bias), "length with the excess of score; 0 is best")
    yield row("padding earns", lambda test: estimate_text(test.padding_shift), "by sentences that add nothing")
    if any(test.position_bias for test in tests):
        yield row("position bias", lambda test: estimate_text(test.position_bias), "place shown with excess of score")
    if any(test.split_by_order is not None for test in tests):
        yield row("pairs split by order", lambda test: figure(test.split_by_order, "%"), "the order chose the winner")
    if any(test.first_shown_earns for test in tests):
        yield row("shown first earns", lambda test: estimate_text(test.first_shown_earns), "share of wins; 0 is best")
    yield row("attacks that earned", lambda test: figure(test.attacks_raised_share, "%"), "raised a bad answer's score")
    yield row("rose without attack", lambda test: figure(test.rose_when_repeated, "%"), "bad answers judged twice")
    yield row("latency, median", lambda test: figure(test.latency_s.p50, "s"), "of a call")
    yield row("latency, 90 %", lambda test: figure(test.latency_s.p90, "s"), "of a call")
    yield row("cost of 1,000 answers", _cost_of_1000, "without probes")
    yield row("cost of this test", lambda test: figure(test.cost_usd, "$"), "with verdicts that were paid for before")


def estimate_text(estimate: Estimate | None) -> str:
    if estimate is None:
        return figure(None)
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.2f}"
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def _number(value: float | None) -> str:
    return figure(None) if value is None else f"{value:.3f}"


def _calibration_error(test: JudgeTest) -> str:
    return _number(None if test.calibration is None else test.calibration.error)


def _cost_of_1000(test: JudgeTest) -> str:
    return figure(1000 * test.cost_of_answers_usd / test.judged if test.judged else None, "$")
