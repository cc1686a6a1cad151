"""The closing report of `rewardflow score`: distribution of scores, failures and their reasons, time, cost and savings.

Always true: the report counts the verdicts that were written, so that the table and the output file agree.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

import rewardflow as rf
from rewardflow.answers import BadRow, JudgedAnswer
from rewardflow.cli.agent_view import num_retries
from rewardflow.cli.display import COLUMN_GAP, bar, dollars, duration, sparkline, stdout_console, three_columns
from rewardflow.cli.safe_text import safe
from rewardflow.cli.score.scoring import Scoring
from rewardflow.observe.histogram import Histogram

if TYPE_CHECKING:
    from rich.console import Console

QUANTILES = (0.5, 0.9, 0.99)
MAX_BINS = 10
MAX_DISTINCT = 11  # scores of 0 to 10 get one bar each
BAR_WIDTH = 40
REASONS_SHOWN = 2
REASON_LINES = 2  # of the screen
MIN_REASON_COLUMNS = 20


# ---- distribution of scores -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bin:
    """Counts scores from `low` up to `high`. Includes `high` if it equals `low` or the bin is the last."""

    low: float
    high: float
    count: int

    @property
    def label(self) -> str:
        return f"{self.low:.3g}" if self.low == self.high else f"{self.low:.3g} to {self.high:.3g}"


@dataclass(frozen=True, slots=True)
class Distribution:
    """The scores of one criterion."""

    count: int
    mean: float
    bins: tuple[Bin, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Distribution:
        return cls(len(values), sum(values) / len(values), tuple(_bins(values)))

    def to_json(self) -> dict[str, Any]:
        bins = [{"low": one.low, "high": one.high, "count": one.count} for one in self.bins]
        return {"count": self.count, "mean": self.mean, "bins": bins}


def _bins(values: Sequence[float]) -> Iterator[Bin]:
    """Yields one bin for each distinct score, or equal bins if there are many: over 0 to 1 if all scores fit."""
    distinct = Counter(values)
    if len(distinct) <= MAX_DISTINCT:
        yield from (Bin(value, value, count) for value, count in sorted(distinct.items()))
        return
    low, high = min(values), max(values)
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    # A weighted sum, because the difference of two large numbers may overflow a float.
    edges = [low * (1 - i / MAX_BINS) + high * (i / MAX_BINS) for i in range(MAX_BINS + 1)]
    counts = [0] * MAX_BINS
    for value in values:
        counts[max(0, sum(value >= edge for edge in edges[:-1]) - 1)] += 1
    yield from (Bin(edges[i], edges[i + 1], counts[i]) for i in range(MAX_BINS))


# ---- summing up ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreOutcome:
    """The figures of the closing report."""

    rows: int
    scored: int
    imputed: int
    failures: Mapping[str, Counter[str]]  # by kind, then by reason
    scores: Mapping[str, Distribution]  # the score first, then its components
    latency_s: Histogram
    calls: int
    retries: int
    cached: int
    saved_by_cascade: int
    cost_usd: float
    run_cost_usd: float
    tokens: int
    cached_tokens: int
    cache_saved_usd: float
    elapsed_s: float
    halted: str | None
    out: Path | None  # None if the verdicts could be written nowhere
    journal: Path | None

    @property
    def failed(self) -> int:
        return self.rows - self.scored

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "scored": self.scored,
            "imputed": self.imputed,
            "failed": {kind: reasons.total() for kind, reasons in self.failures.items()},
            "reasons": {kind: dict(reasons.most_common(REASONS_SHOWN)) for kind, reasons in self.failures.items()},
            "scores": {name: distribution.to_json() for name, distribution in self.scores.items()},
            "latency_s": {f"p{q * 100:g}": self.latency_s.quantile(q) for q in QUANTILES},
            "calls": self.calls,
            "retries": self.retries,
            "cached": self.cached,
            "saved_by_cascade": self.saved_by_cascade,
            "cost_usd": self.cost_usd,
            "run_cost_usd": self.run_cost_usd,
            "tokens": self.tokens,
            "cached_tokens": self.cached_tokens,
            "cache_saved_usd": self.cache_saved_usd,
            "elapsed_s": self.elapsed_s,
            "halted": self.halted,
            "out": None if self.out is None else str(self.out),
            "journal": None if self.journal is None else str(self.journal),
        }


def summarise(
    judged: Sequence[JudgedAnswer], scoring: Scoring, *, out: Path | None, journal: Path | None
) -> ScoreOutcome:
    rewards = [one.reward for one in judged if one.reward is not None]
    latency_s = Histogram()
    for reward in rewards:
        if reward.attempts and not reward.cached:
            latency_s.add(reward.latency_s)
    statistics = scoring.statistics
    ledger = statistics.ledger
    return ScoreOutcome(
        rows=len(judged),
        scored=sum(reward.is_scored for reward in rewards),
        imputed=sum(reward.imputed for reward in rewards),
        failures=_failures(judged),
        scores=_distributions(rewards),
        latency_s=latency_s,
        calls=statistics.calls,
        retries=num_retries(statistics),
        cached=sum(reward.cached for reward in rewards),
        saved_by_cascade=sum(decider.decided for decider in statistics.deciders.values()),
        cost_usd=ledger.spent_usd - scoring.spent_before_usd,
        run_cost_usd=ledger.spent_usd,
        tokens=ledger.tokens,
        cached_tokens=ledger.cached_tokens,
        cache_saved_usd=ledger.cache_saved_usd,
        elapsed_s=scoring.elapsed_s,
        halted=None if scoring.halted is None else str(scoring.halted),
        out=out,
        journal=journal,
    )


def _failures(judged: Sequence[JudgedAnswer]) -> dict[str, Counter[str]]:
    failures: dict[str, Counter[str]] = {}
    for one in judged:
        if isinstance(one.row, BadRow):
            failures.setdefault("bad_row", Counter())[one.row.why] += 1
        elif one.reward is not None and not one.reward.is_scored:
            failures.setdefault(str(one.reward.kind), Counter())[_reason(one.reward)] += 1
    return dict(sorted(failures.items(), key=lambda item: -item[1].total()))


def _reason(reward: rf.Reward) -> str:
    """Shortens the measured times in a reason, because otherwise equal reasons would differ in their digits."""
    return re.sub(r"(\d+\.\d)\d+", r"\1", reward.error or "")


def _distributions(rewards: Sequence[rf.Reward]) -> dict[str, Distribution]:
    values: dict[str, list[float]] = {"score": []}
    for reward in rewards:
        if reward.value is not None:
            values["score"].append(reward.value)
        for name, value in reward.components.items():
            if value is not None:
                values.setdefault(name if name != "score" else "score (component)", []).append(value)
    return {name: Distribution.of(column) for name, column in values.items() if column}


# ---- showing ------------------------------------------------------------------------------------------------------


def report(outcome: ScoreOutcome, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(orjson.dumps(outcome.to_json(), option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        show(outcome, stdout_console())


def show(outcome: ScoreOutcome, console: Console) -> None:
    imputed = f" ({outcome.imputed:,} of them imputed)" if outcome.imputed else ""
    console.print(
        f"\n{outcome.rows:,} rows: {outcome.scored:,} scored{imputed}, {outcome.failed:,} failed, "
        f"in {duration(outcome.elapsed_s)}\n"
    )
    scores, rest = list(_score_rows(outcome, ascii_only=console.options.ascii_only)), list(_rest(outcome))
    failures = list(_failure_rows(outcome))
    everything = [*scores, *failures, *rest]
    taken = sum(max(len(row[column]) for row in everything) + COLUMN_GAP for column in (0, 1))
    columns = max(console.width - taken, MIN_REASON_COLUMNS)
    clipped = [(label, figure, _clipped(reasons, columns)) for label, figure, reasons in failures]
    console.print(three_columns([*scores, *clipped, *rest]))
    console.print(f"\nverdicts:  {'not written' if outcome.out is None else safe(str(outcome.out))}", soft_wrap=True)


def _score_rows(outcome: ScoreOutcome, *, ascii_only: bool) -> Iterator[tuple[str, str, str]]:
    """Yields a bar chart of the score and one line for each component, because judges may have many criteria."""
    for name, distribution in outcome.scores.items():
        if name == "score":
            most = max(one.count for one in distribution.bins)
            for number, one in enumerate(distribution.bins):
                shown = bar(one.count / most, BAR_WIDTH, ascii_only=ascii_only)
                yield ("" if number else "scores", one.label, f"{shown} {one.count:,}")
            yield "", "mean", f"{distribution.mean:.3g}"
        else:
            spark = sparkline([one.count for one in distribution.bins], ascii_only=ascii_only)
            ends = distribution.bins[0].low, distribution.bins[-1].high
            yield safe(name), f"mean {distribution.mean:.3g}", f"{ends[0]:.3g} {spark} {ends[1]:.3g}"
    if outcome.imputed:
        yield "imputed", f"{outcome.imputed:,}", "scores replace failures, by the reward's own post_process_scores"


def _failure_rows(outcome: ScoreOutcome) -> Iterator[tuple[str, str, str]]:
    for number, (kind, reasons) in enumerate(outcome.failures.items()):
        examples = "\n".join(" ".join(safe(reason).split()) for reason, _ in reasons.most_common(REASONS_SHOWN))
        yield "" if number else "failures", f"{kind} {reasons.total():,}", examples


def _rest(outcome: ScoreOutcome) -> Iterator[tuple[str, str, str]]:
    quantiles = [(q, outcome.latency_s.quantile(q)) for q in QUANTILES]
    latencies = "   ".join(f"{duration(value)} (p{q * 100:g})" for q, value in quantiles if value is not None)
    if latencies:
        yield "latency", "", f"{latencies}, with retries"
    yield "calls", f"{outcome.calls:,}", f"{outcome.retries:,} of them retries"
    if outcome.cached:
        yield "saved", f"{outcome.cached:,}", "verdicts came from the journal and were not paid for again"
    if outcome.saved_by_cascade:
        yield "saved", f"{outcome.saved_by_cascade:,}", "answers were decided by a rule, without asking a judge"
    before_usd = outcome.run_cost_usd - outcome.cost_usd
    earlier = f"; {dollars(outcome.run_cost_usd)} with what this run had spent before" if before_usd > 0 else ""
    yield "cost", dollars(outcome.cost_usd), f"{outcome.tokens:,} tokens, retries included{earlier}"
    if outcome.cached_tokens:
        text = "of these tokens came from the service's cache of prompts"
        yield "saved", dollars(outcome.cache_saved_usd), f"{outcome.cached_tokens:,} {text}"


def _clipped(reasons: str, columns: int) -> str:
    """Cuts each reason where it would take more than `REASON_LINES` lines of the screen."""
    room = columns * REASON_LINES
    return "\n".join(one if len(one) <= room else f"{one[: room - 3]}..." for one in reasons.split("\n"))
