"""Lists the figures of a run that are drawn over its steps.

Always true: figures that this release does not know are drawn too, after the known ones, so that those of another
trainer or a later release are not lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from rewardflow.report.curves import Curve, CurveLine, Figure
from rewardflow.report.run_figures import score_of
from rewardflow.report.steps import LimitRange, StepJudging, StepRow

Name = TypeVar("Name")


def named(name: str) -> Figure:
    """Returns a function that reads a figure of metrics.jsonl by its name."""
    return lambda row: row.figure(name)


def judged(of: Callable[[StepJudging], float | None]) -> Figure:
    return lambda row: None if row.judged is None else of(row.judged)


def _line(name: str, figure: str) -> CurveLine:
    """Makes one line of a curve from the figure of that name."""
    return CurveLine(name=name, of=named(figure))


def _one(title: str, name: str, *, unit: str = "", note: str = "", from_zero: bool = False) -> Curve:
    return Curve(title=title, lines=[CurveLine(name=title, of=named(name))], unit=unit, note=note, from_zero=from_zero)


def reward_time_curve() -> Curve:
    return Curve(
        title="Reward time of a step",
        unit="s",
        note="exposed: the device waited for verdicts; hidden: it had other work",
        from_zero=True,
        lines=[
            CurveLine(name="exposed", of=lambda row: None if row.trained is None else row.trained.exposed_s),
            CurveLine(name="hidden", of=lambda row: None if row.trained is None else row.trained.hidden_s),
        ],
    )


def step_time_curve() -> Curve:
    return _one("Step time", "duration_s", unit="s", note="from one publishing to the next", from_zero=True)


def learning_curves(steps: Sequence[StepRow]) -> list[Curve]:
    components = _names(_components(row) for row in steps)
    return [
        Curve(title="Score", note="mean over scored rollouts", lines=[CurveLine(name="Score", of=score_of)]),
        Curve(title="Components", note="mean of each", lines=[_component(name) for name in components]),
        _one("KL from the reference", "kl"),
        Curve(
            title="KL from the policy before the step",
            lines=[_line("k1", "kl_old_k1"), _line("k3", "kl_old_k3")],
        ),
        _one("Entropy", "entropy"),
        _one("Response length", "response_tokens_mean", unit="tokens"),
        Curve(
            title="Staleness",
            note="step minus the version that generated",
            from_zero=True,
            lines=[_line("mean", "staleness_mean"), _line("max", "staleness_max")],
        ),
        Curve(
            title="Mini-batch bias",
            note="correlation with the mini-batch's index; near 0 if mini-batches are alike",
            lines=[
                _line("length", "mini_batch_bias_length"),
                _line("score", "mini_batch_bias_score"),
                _line("latency", "mini_batch_bias_latency"),
            ],
        ),
        _one("Gradient norm", "grad_norm", note="before clipping", from_zero=True),
        _one("Policy loss", "policy_loss"),
        Curve(
            title="Clipped tokens",
            unit="%",
            from_zero=True,
            hides_zeros=True,
            lines=[
                _line("from below", "clipped_low"),
                _line("from above", "clipped_high"),
                _line("dual", "clipped_dual"),
            ],
        ),
        _one("Learning rate", "lr", from_zero=True),
        Curve(
            title="KL from the policy that generated",
            lines=[_line("k1", "behaviour_kl_k1"), _line("k3", "behaviour_kl_k3")],
        ),
        Curve(
            title="Effective sample size",
            unit="%",
            note="share of tokens and of responses",
            from_zero=True,
            lines=[_line("tokens", "effective_share"), _line("responses", "response_effective_share")],
        ),
        Curve(
            title="Tokens a second",
            from_zero=True,
            lines=[_line("generated", "generated_tokens_per_s"), _line("trained", "trained_tokens_per_s")],
        ),
    ]


# Figures that are drawn elsewhere or need no chart.
_KNOWN = frozenset(
    {
        *("v", "step", "version", "ended_s", "duration_s", "exposed_s", "hidden_s", "num_updates", "score_mean"),
        *("kl", "kl_old_k1", "kl_old_k3", "entropy", "response_tokens_mean", "staleness_mean", "staleness_max"),
        *("behaviour_kl_k1", "behaviour_kl_k3", "effective_share", "response_effective_share"),
        *("generated_tokens_per_s", "trained_tokens_per_s"),
        *("mini_batch_bias_length", "mini_batch_bias_score", "mini_batch_bias_latency"),
        *("grad_norm", "policy_loss", "clipped_low", "clipped_high", "clipped_dual", "lr", "cost_usd", "num_scored"),
    }
)


def other_curves(steps: Sequence[StepRow]) -> list[Curve]:
    """Makes curves of all other figures in metrics.jsonl: of this release, of another, or of another trainer."""
    names = _names(row.trained.figures for row in steps if row.trained is not None)
    return [_one(name, name, unit="s" if name.endswith("_s") else "") for name in names if name not in _KNOWN]


def call_curves(steps: Sequence[StepRow]) -> list[Curve]:
    return [
        Curve(
            title="Latency of verdicts",
            unit="s",
            from_zero=True,
            note="retries included, queue not",
            lines=[
                CurveLine(name="median", of=judged(lambda one: one.latency_s.quantile(0.5))),
                CurveLine(name="99 %", of=judged(lambda one: one.latency_s.quantile(0.99))),
            ],
        ),
        Curve(
            title="Time in the queue",
            unit="s",
            from_zero=True,
            note="before the first call",
            lines=[
                CurveLine(name="median", of=judged(lambda one: one.waited_s.quantile(0.5))),
                CurveLine(name="99 %", of=judged(lambda one: one.waited_s.quantile(0.99))),
            ],
        ),
        *_limit_curves(steps),
        Curve(
            title="Extra calls of a step",
            from_zero=True,
            note="429 answers, retries and hedges",
            lines=[
                CurveLine(
                    name="429", of=judged(lambda one: one.outcomes.get("rate_limited", 0.0) if one.outcomes else None)
                ),
                CurveLine(name="retries", of=judged(lambda one: one.retries)),
                CurveLine(name="hedges", of=judged(lambda one: one.hedges)),
            ],
        ),
        Curve(
            title="Breakers and outages",
            from_zero=True,
            hides_zeros=True,
            lines=[
                CurveLine(name="breakers that opened", of=judged(lambda one: one.breakers_opened)),
                CurveLine(name="open at the end", of=judged(lambda one: one.breakers_open)),
                CurveLine(name="outages", of=judged(lambda one: one.outages)),
            ],
        ),
    ]


def _limit_curves(steps: Sequence[StepRow]) -> list[Curve]:
    accounts = _names(row.judged.limits for row in steps if row.judged is not None)
    titles = {"pace": ("Learnt rate", "a minute"), "concurrency": ("Learnt concurrency", "calls")}
    curves = []
    for account, governor in accounts:
        title, unit = titles.get(governor, (governor, ""))
        note = f"{unit}, of {account}; the band is where it moved"
        line = _limit_line(account, _held(steps, account, governor))
        curves.append(Curve(title=title, lines=[line], note=note, is_log=True))
    return curves


def _limit_line(account: str, held: Mapping[int, LimitRange]) -> CurveLine:
    none = LimitRange(low=None, high=None, last=None)
    return CurveLine(
        name=account,
        of=lambda row: held.get(row.step, none).last,
        low=lambda row: held.get(row.step, none).low,
        high=lambda row: held.get(row.step, none).high,
    )


def _held(steps: Sequence[StepRow], account: str, governor: str) -> dict[int, LimitRange]:
    """Repeats a limit's last value until it changes."""
    held: dict[int, LimitRange] = {}
    last: LimitRange | None = None
    for row in steps:
        moved = row.judged.limits.get((account, governor)) if row.judged is not None else None
        if moved is not None:
            last = moved
        elif last is not None:
            last = LimitRange(low=last.last, high=last.last, last=last.last)
        if last is not None:
            held[row.step] = last
    return held


def cost_curves(steps: Sequence[StepRow]) -> list[Curve]:
    spent_usd: dict[int, float] = {}
    total_usd = 0.0
    for row in steps:
        total_usd += (cost_of(row) or 0.0) + (row.validation_cost_usd or 0.0)
        spent_usd[row.step] = total_usd
    return [
        Curve(title="Cost so far", unit="$", from_zero=True, lines=[_from_table("Cost so far", spent_usd)]),
        Curve(title="Cost of a step", unit="$", from_zero=True, lines=[CurveLine(name="Cost of a step", of=cost_of)]),
        Curve(
            title="Cost of a validation",
            unit="$",
            from_zero=True,
            is_sparse=True,
            hides_zeros=True,
            lines=[CurveLine(name="Cost of a validation", of=lambda row: row.validation_cost_usd)],
        ),
        Curve(
            title="Tokens of a step",
            from_zero=True,
            note="that the service counted",
            lines=[CurveLine(name="Tokens of a step", of=judged(lambda one: one.tokens))],
        ),
        Curve(
            title="Tokens from the service's cache",
            from_zero=True,
            hides_zeros=True,
            note="the service had computed these parts of the prompts before",
            lines=[CurveLine(name="Tokens from the service's cache", of=judged(lambda one: one.cached_tokens))],
        ),
    ]


def _from_table(name: str, by_step: Mapping[int, float]) -> CurveLine:
    return CurveLine(name=name, of=lambda row: by_step.get(row.step))


def cost_of(row: StepRow) -> float | None:
    return row.judged.cost_usd if row.judged is not None else row.figure("cost_usd")


def failure_curves(steps: Sequence[StepRow]) -> list[Curve]:
    kinds = _names(_failed(row) for row in steps)
    reasons = _names(row.trained.dropped for row in steps if row.trained is not None)
    return [
        Curve(
            title="Failed verdicts of a step",
            from_zero=True,
            hides_zeros=True,
            lines=[_failed_line(kind) for kind in kinds],
        ),
        Curve(
            title="Dropped groups of a step",
            from_zero=True,
            hides_zeros=True,
            lines=[_dropped_line(reason) for reason in reasons],
        ),
    ]


def _failed_line(kind: str) -> CurveLine:
    return CurveLine(name=kind.replace("_", " "), of=lambda row: _failed(row).get(kind, 0.0))


def _dropped_line(reason: str) -> CurveLine:
    name = reason.replace("_", " ")
    return CurveLine(name=name, of=lambda row: None if row.trained is None else row.trained.dropped.get(reason, 0.0))


def _failed(row: StepRow) -> Mapping[str, float]:
    if row.judged is not None:
        return row.judged.failed
    return {} if row.trained is None else row.trained.failed


def _components(row: StepRow) -> Mapping[str, float]:
    if row.trained is not None and row.trained.component_means:
        return row.trained.component_means
    return {} if row.judged is None else row.judged.component_means


def _component(name: str) -> CurveLine:
    return CurveLine(name=name, of=lambda row: _components(row).get(name))


def _names(mappings: Iterable[Mapping[Name, object]]) -> list[Name]:
    """Returns every name once, in the order of its first use."""
    return list(dict.fromkeys(name for mapping in mappings for name in mapping))
