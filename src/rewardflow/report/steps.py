"""Reads each step's figures: of training from metrics.jsonl, of judging from steps.jsonl.

Always true: a run without a trainer has no trained steps, a run without an agent has no judged ones, and either can be
reported; steps are in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rewardflow.drawing.timeline import Load
from rewardflow.observe.histogram import Histogram
from rewardflow.observe.run_directory import RunDirectory
from rewardflow.report.fields import Fields
from rewardflow.report.line_reading import last_lines
from rewardflow.types import EMPTY

VALIDATION = "validation"  # the source of lines about validations; the names of their figures begin with it


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Latencies of one mini-batch."""

    count: int
    mean: float | None
    p10: float | None
    p50: float | None
    p90: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A line of metrics.jsonl. `figures` holds all its numbers by name, also those that this release does not know."""

    ended_s: float
    duration_s: float
    busy_s: Mapping[str, float]
    idle_s: Mapping[str, float]
    exposed_s: float | None
    hidden_s: float | None
    failed: Mapping[str, float]
    dropped: Mapping[str, float]
    component_means: Mapping[str, float]
    mini_batch_latency_s: Sequence[Spread]
    warnings: Sequence[str]
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRange:
    """The range of a learnt limit during a step, and its value at the end."""

    low: float | None
    high: float | None
    last: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepJudging:
    """The agent's last line about a step."""

    rollouts: int
    scored: int
    failed: Mapping[str, float]
    imputed: int
    cached: int
    calls: int
    retries: int
    hedges: int
    outcomes: Mapping[str, float]
    cost_usd: float
    tokens: int
    cached_tokens: int
    cache_saved_usd: float
    score_mean: float | None
    score_min: float | None
    score_max: float | None
    component_means: Mapping[str, float]
    latency_s: Histogram
    waited_s: Histogram
    first_submitted_s: float | None
    last_delivered_s: float | None
    in_flight: Load | None
    limits: Mapping[tuple[str, str], LimitRange]  # by account and governor
    breakers_opened: int
    breakers_open: int  # at the step's end, of the breakers that changed
    outages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    step: int
    trained: Trained | None = None
    judged: StepJudging | None = None
    measured: Mapping[str, float] = EMPTY  # on validation data, before this step was trained
    validated: StepJudging | None = None  # the agent's line about that validation

    @property
    def validation_cost_usd(self) -> float | None:
        return self.measured.get("cost_usd") if self.validated is None else self.validated.cost_usd

    def figure(self, name: str) -> float | None:
        return None if self.trained is None else self.trained.figures.get(name)


def read_step_rows(directory: RunDirectory) -> tuple[StepRow, ...]:
    trained = {step: _trained(fields) for step, fields in last_lines(directory.metrics_path, "train").items()}
    judged = {step: _judged(step, fields) for step, fields in last_lines(directory.steps_path, "reward").items()}
    measured = {step: _measured(fields) for step, fields in last_lines(directory.metrics_path, VALIDATION).items()}
    validated = {step: _judged(step, fields) for step, fields in last_lines(directory.steps_path, VALIDATION).items()}
    return tuple(
        StepRow(
            step=step,
            trained=trained.get(step),
            judged=judged.get(step),
            measured=measured.get(step, EMPTY),
            validated=validated.get(step),
        )
        for step in sorted(trained.keys() | judged.keys() | measured.keys() | validated.keys())
    )


def _measured(fields: Fields) -> dict[str, float]:
    """Returns the figures whose names begin with `validation`: the line also has figures about itself."""
    prefix = f"{VALIDATION}/"
    return {name.removeprefix(prefix): value for name, value in fields.by_name().items() if name.startswith(prefix)}


def _trained(fields: Fields) -> Trained:
    spreads = [
        Spread(
            count=each.count("count"),
            mean=each.number("mean"),
            p10=each.number("p10"),
            p50=each.number("p50"),
            p90=each.number("p90"),
        )
        for each in fields.all_inner("mini_batch_latency_s")
    ]
    return Trained(
        ended_s=fields.number("ended_s") or 0.0,
        duration_s=fields.number("duration_s") or 0.0,
        busy_s=fields.inner("busy_s").by_name(),
        idle_s=fields.inner("idle_s").by_name(),
        exposed_s=fields.number("exposed_s"),
        hidden_s=fields.number("hidden_s"),
        failed=fields.inner("failed").by_name(),
        dropped=fields.inner("dropped").by_name(),
        component_means=fields.inner("component_means").by_name(),
        mini_batch_latency_s=tuple(spreads),
        warnings=fields.texts("warnings"),
        figures=fields.by_name(),
    )


def _judged(step: int, fields: Fields) -> StepJudging:
    score = fields.inner("score")
    components = fields.inner("components")
    means = {name: components.inner(name).number("mean") for name in components.data}
    accounts = fields.inner("accounts")
    of_accounts = {name: accounts.inner(name) for name in accounts.data}
    breakers = [state for each in of_accounts.values() for state in each.inner("breakers").data.values()]
    return StepJudging(
        rollouts=fields.count("rollouts"),
        scored=fields.count("scored"),
        failed=fields.inner("failed").by_name(),
        imputed=fields.count("imputed"),
        cached=fields.count("cached"),
        calls=fields.count("calls"),
        retries=fields.count("retries"),
        hedges=fields.count("hedges"),
        outcomes=fields.inner("outcomes").by_name(),
        cost_usd=fields.number("cost_usd") or 0.0,
        tokens=fields.count("tokens"),
        cached_tokens=fields.count("cached_tokens"),
        cache_saved_usd=fields.number("cache_saved_usd") or 0.0,
        score_mean=score.number("mean"),
        score_min=score.number("min"),
        score_max=score.number("max"),
        component_means={name: mean for name, mean in means.items() if mean is not None},
        latency_s=_histogram(fields, "latency_s"),
        waited_s=_histogram(fields, "waited_s"),
        first_submitted_s=fields.number("first_submitted_s"),
        last_delivered_s=fields.number("last_delivered_s"),
        in_flight=_load(step, fields.inner("in_flight")),
        limits=_limits(of_accounts),
        breakers_opened=sum(each.count("breakers_opened") for each in of_accounts.values()),
        breakers_open=breakers.count("open"),
        outages=sum(each.count("outages") for each in of_accounts.values()),
    )


def _limits(accounts: Mapping[str, Fields]) -> dict[tuple[str, str], LimitRange]:
    limits = {}
    for account, fields in accounts.items():
        governors = fields.inner("limits")
        for governor in governors.data:
            limit = governors.inner(governor)
            limits[account, governor] = LimitRange(
                low=limit.number("min"), high=limit.number("max"), last=limit.number("last")
            )
    return limits


def _histogram(fields: Fields, name: str) -> Histogram:
    data = fields.inner(name).data
    return Histogram.from_json(data) if data else Histogram()


def _load(step: int, fields: Fields) -> Load | None:
    started_s, width_s = fields.number("started_s"), fields.number("width_s")
    calls = [count or 0.0 for count in fields.numbers("calls")]
    if started_s is None or not width_s or width_s <= 0 or not calls:
        return None
    return Load(name=f"step {step}", started_s=started_s, width_s=width_s, calls=tuple(calls))
