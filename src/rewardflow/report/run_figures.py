"""Summarises a run in a few figures and names what kept it from being faster.

Always true: times come from the trainer, costs and calls from the agent, which also counts the cost of failed calls;
shares are of the time of the trained steps. A bottleneck is named only if the figures show it.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewardflow.drawing.scales import figure
from rewardflow.observe.histogram import Histogram
from rewardflow.report.steps import StepJudging, StepRow, Trained

HIDDEN_WELL = 0.05  # a share of exposed time that is not worth reducing
_SLOW_QUEUE = 0.5  # wait for a slot, relative to the call's own time
_MANY_REFUSALS = 0.01
_RATE_IS_USED = 0.6  # of a learnt rate: above this share, calls wait for the rate limit
_LONG_TAIL = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What the run waited for most, and the figures that show it."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    num_trained: int
    total_s: float
    step_s: float | None  # the median
    seconds_by_kind: Mapping[str, float]
    exposed_s: float
    hidden_s: float
    score_first: float | None
    score_last: float | None
    rollouts: int
    scored: int
    failed: Mapping[str, float]
    dropped: Mapping[str, float]
    imputed: int
    cached: int
    calls: int
    retries: int
    hedges: int
    outcomes: Mapping[str, float]
    cost_usd: float  # including validations
    tokens: int
    cached_tokens: int
    cache_saved_usd: float
    validation_cost_usd: float
    validation_calls: int
    learnt_rpm: float | None  # of all accounts that learnt a rate
    latency_s: Histogram
    waited_s: Histogram
    breakers_opened: int
    outages: int

    def to_json(self) -> dict[str, Any]:
        """Returns the page's figures for programs."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            **own,
            "latency_s": self.latency_s.to_json(),
            "waited_s": self.waited_s.to_json(),
            "busy_share": self.busy_share,
            "exposed_share": self.exposed_share,
            "failed_share": self.failed_share,
            "binding": dataclasses.asdict(binding_of(self)),
        }

    @property
    def calls_per_minute(self) -> float | None:
        return 60 * self.calls / self.total_s if self.total_s else None

    @property
    def exposed_share(self) -> float | None:
        return self.exposed_s / self.total_s if self.total_s else None

    @property
    def busy_share(self) -> float | None:
        return sum(self.seconds_by_kind.get(kind, 0.0) for kind in _WORK) / self.total_s if self.total_s else None

    @property
    def failed_share(self) -> float | None:
        return self.num_failed / self.rollouts if self.rollouts else None

    @property
    def num_failed(self) -> float:
        return sum(self.failed.values())


_WORK = ("generate", "log_probs", "validate", "update", "publish")


def figures_of(steps: Sequence[StepRow]) -> RunFigures:
    trained = [row.trained for row in steps if row.trained is not None]
    judged = [row.judged for row in steps if row.judged is not None]
    scores = [score for row in steps if (score := score_of(row)) is not None]
    failed = _summed([one.failed for one in judged] if judged else [one.failed for one in trained])
    validation_cost_usd = sum(row.validation_cost_usd or 0.0 for row in steps)
    latency_s, waited_s = Histogram(), Histogram()
    for one in judged:
        latency_s.merge(one.latency_s)
        waited_s.merge(one.waited_s)
    return RunFigures(
        num_trained=len(trained),
        total_s=sum(one.duration_s for one in trained),
        step_s=statistics.median(one.duration_s for one in trained) if trained else None,
        seconds_by_kind=_summed([one.busy_s for one in trained], [one.idle_s for one in trained]),
        exposed_s=sum(one.exposed_s or 0.0 for one in trained),
        hidden_s=sum(one.hidden_s or 0.0 for one in trained),
        score_first=scores[0] if scores else None,
        score_last=scores[-1] if scores else None,
        rollouts=sum(one.rollouts for one in judged),
        scored=sum(one.scored for one in judged),
        failed=failed,
        dropped=_summed([one.dropped for one in trained]),
        imputed=sum(one.imputed for one in judged),
        cached=sum(one.cached for one in judged),
        calls=sum(one.calls for one in judged),
        retries=sum(one.retries for one in judged),
        hedges=sum(one.hedges for one in judged),
        outcomes=_summed([one.outcomes for one in judged]),
        cost_usd=_cost_usd(trained, judged) + validation_cost_usd,
        tokens=sum(one.tokens for one in judged),
        cached_tokens=sum(one.cached_tokens for one in judged),
        cache_saved_usd=sum(one.cache_saved_usd for one in judged),
        validation_cost_usd=validation_cost_usd,
        validation_calls=sum(row.validated.calls for row in steps if row.validated is not None),
        learnt_rpm=_learnt_rpm(judged),
        latency_s=latency_s,
        waited_s=waited_s,
        breakers_opened=sum(one.breakers_opened for one in judged),
        outages=sum(one.outages for one in judged),
    )


def score_of(row: StepRow) -> float | None:
    """Prefers the trainer's mean: the agent's also has rollouts that were not trained."""
    mean = row.figure("score_mean")
    return mean if mean is not None or row.judged is None else row.judged.score_mean


def binding_of(figures: RunFigures) -> Binding:
    """Names what the device waited for most, or its work if it waited for nothing longer than `HIDDEN_WELL`."""
    if not figures.total_s:
        return _binding_of_calls(figures)
    idle = {kind: figures.seconds_by_kind.get(kind, 0.0) / figures.total_s for kind in _WAITS}
    worst = max(idle, key=lambda kind: idle[kind])
    if idle[worst] <= HIDDEN_WELL:
        busy = {kind: figures.seconds_by_kind.get(kind, 0.0) / figures.total_s for kind in _WORK}
        most = max(busy, key=lambda kind: busy[kind])
        share, name = figure(busy[most], "%"), most.replace("_", "-")
        return Binding(name="compute", reason=f"the device is busy, {share} of the time with {name}")
    if worst != "reward":
        return Binding(name=_WAITS[worst], reason=f"the device waits for it {figure(idle[worst], '%')} of the time")
    calls = _binding_of_calls(figures)
    return Binding(
        name=calls.name, reason=f"the device waits for verdicts {figure(idle[worst], '%')} of the time; {calls.reason}"
    )


_WAITS = {
    "reward": "verdicts",
    "generation": "generation",
    "validation": "validation",
    "checkpoint": "checkpoints",
    "other": "something else",
}


def _binding_of_calls(figures: RunFigures) -> Binding:
    latency_s, waited_s = figures.latency_s.mean, figures.waited_s.mean
    if latency_s is None or waited_s is None:
        return Binding(name="unknown", reason="no call was timed")
    refused = figures.outcomes.get("rate_limited", 0.0) / figures.calls if figures.calls else 0.0
    median_s, late_s = figures.latency_s.quantile(0.5) or 0.0, figures.latency_s.quantile(0.99) or 0.0
    if waited_s > _SLOW_QUEUE * latency_s:
        queue = f"a call waits {figure(waited_s, 's')} before it starts and takes {figure(latency_s, 's')}"
        if refused > _MANY_REFUSALS:
            return Binding(name="rate limit", reason=f"{queue}, and {figure(refused, '%')} of calls are answered 429")
        rate, rpm = figures.calls_per_minute, figures.learnt_rpm
        if rate is not None and rpm is not None and rate > _RATE_IS_USED * rpm:
            return Binding(name="rate limit", reason=f"{queue}; {figure(rpm)} a minute were learnt to be allowed")
        return Binding(name="service slots", reason=f"{queue}; more calls at once would help")
    if late_s > _LONG_TAIL * median_s:
        tail = f"the median call takes {figure(median_s, 's')}, one in a hundred {figure(late_s, 's')} or more"
        return Binding(name="slow tail", reason=tail)
    return Binding(name="judge latency", reason=f"the median call takes {figure(median_s, 's')}, and few wait to start")


def _cost_usd(trained: Sequence[Trained], judged: Sequence[StepJudging]) -> float:
    if judged:
        return sum(one.cost_usd for one in judged)
    return sum(one.figures.get("cost_usd", 0.0) for one in trained)


def _learnt_rpm(judged: Sequence[StepJudging]) -> float | None:
    """Returns the median of each account's rate at the end of the steps in which it changed."""
    rates: defaultdict[str, list[float]] = defaultdict(list)
    for one in judged:
        for (account, governor), limit in one.limits.items():
            if governor == "pace" and limit.last is not None:
                rates[account].append(limit.last)
    return sum(statistics.median(each) for each in rates.values()) if rates else None


def _summed(*lists: Sequence[Mapping[str, float]]) -> dict[str, float]:
    totals: defaultdict[str, float] = defaultdict(float)
    for counts in (one for each in lists for one in each):
        for name, count in counts.items():
            totals[name] += count
    return dict(totals)
