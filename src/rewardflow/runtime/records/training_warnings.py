"""Warns when the figures of a step show that training has left the range in which its mathematics holds.

Always true: a warning names the figure, the bound and what to change; it offers no remedy that the settings do not
allow or have already; a cause is reported once in a run. For stale rollouts and for an engine that computes differently
it offers no correction, because none that was tried made learning faster (docs/benchmarks.md, "Learning"). `SANE` is
the one place for the bounds.

Figures of an off-policy step are heavy-tailed: one token can move them past any bound, and the next step is well again.
So a cause must last for most of the last steps. Only an engine that computes something else is reported at once.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from rewardflow.flow.reports import StepReport
from rewardflow.settings.run_settings import RunSettings

Cause = Literal[
    "engine",
    "engine_outlier",
    "far",
    "few_count",
    "few_responses_count",
    "clipped",
    "left_out",
    "entropy",
    "length_bias",
    "score_bias",
]

_LASTING_STEPS = 10  # a cause that lasts is found in more than half of these
_AT_ONCE: frozenset[Cause] = frozenset(("engine", "engine_outlier"))
_BIAS_STEPS = 20  # the steps over which a bias is averaged
_BEYOND_CHANCE = 4.0  # standard deviations of a correlation between independent figures


@dataclass(frozen=True, slots=True, kw_only=True)
class SaneRange:
    """Bounds on the figures of a step, for rollouts of one staleness: means over its mini-batches."""

    # Fewer tokens of a mini-batch than this say little: one of them can move every figure past its bound.
    min_tokens: int = 200
    # Probabilities of sampled tokens, engine against trainer under the same weights. In float32 they agree to about
    # 1e-5; rounding to bfloat16 moves them by some thousandths in the mean. More is another computation, not rounding.
    engine_diff_mean: float = 0.02
    # A token that one of the two finds likely and the other does not: a wrong temperature, position or weight.
    engine_diff_max: float = 0.8
    # Nats a token between the policy that generated and the present one. PPO's clip at 0.2 holds a token's ratio within
    # what is about 0.02. Runs that learnt one step off-policy were above 0.1 for up to 9 of 10 steps, and above this
    # for at most 5 (docs/benchmarks.md, "Learning").
    behaviour_kl_k3: float = 0.2
    # With weights so uneven the estimate is as noisy as one from half of the tokens, weighed equally.
    effective_share: float = 0.5
    # The same for whole responses, where they are weighed as such; products over many tokens are far more uneven.
    response_effective_share: float = 0.1
    # Tokens that a clip keeps from pulling: they were paid for and teach nothing. Usual are a few in a hundred.
    clipped: float = 0.2
    # Tokens that the correction leaves out, above the cap or outside the range.
    left_out: float = 0.2
    # Nats a token. Below it the responses of a group are all but the same, and there is nothing left to compare.
    entropy: float = 0.005
    # Correlation of a figure with the mini-batch's index. By prompts it is chance; by verdicts it was 0.5 to 0.9 where
    # a judge's latency grew with the length of the answer.
    mini_batch_bias: float = 0.3


SANE = SaneRange()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A figure beyond its bound. `badness` is how many times beyond, 1 at the bound."""

    cause: Cause
    figure: str
    value: float
    bound: float
    badness: float
    where: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        side = "above" if self.value > self.bound else "below"
        return f"{self.where}: {self.figure} is {self.value:.3g}, {side} {self.bound:g}: {self.remedy}"


class HealthWatch:
    """Call `watch.warnings(report)` after each step."""

    def __init__(self, settings: RunSettings, sane: SaneRange = SANE) -> None:
        self._settings = settings
        self._sane = sane
        self._said: set[Cause] = set()
        self._recent: deque[frozenset[Cause]] = deque(maxlen=_LASTING_STEPS)  # the causes found in each step
        self._biases: defaultdict[Cause, deque[float]] = defaultdict(lambda: deque(maxlen=_BIAS_STEPS))

    def warnings(self, report: StepReport) -> list[str]:
        """Returns the new warnings of this step."""
        found = worst_findings(report, self._settings, self._sane)
        self._recent.append(frozenset(found))
        lasting = {cause: one for cause, one in found.items() if cause in _AT_ONCE or self._lasts(cause)}
        new = {
            cause: one for cause, one in {**lasting, **self._bias_findings(report)}.items() if cause not in self._said
        }
        self._said.update(new)
        return [str(finding) for finding in new.values()]

    def _lasts(self, cause: Cause) -> bool:
        return sum(cause in causes for causes in self._recent) > _LASTING_STEPS / 2

    def _bias_findings(self, report: StepReport) -> dict[Cause, Finding]:
        """Averages over steps, because the few groups of one step correlate with anything."""
        biases: dict[Cause, tuple[str, float | None]] = {
            "length_bias": ("mini_batch_bias_length", report.mini_batch_bias.length),
            "score_bias": ("mini_batch_bias_score", report.mini_batch_bias.score),
        }
        found: dict[Cause, Finding] = {}
        for cause, (figure, value) in biases.items():
            if value is None:
                continue
            self._biases[cause].append(value)
            num_steps, bound = len(self._biases[cause]), self._sane.mini_batch_bias
            mean = sum(self._biases[cause]) / num_steps
            by_chance = _BEYOND_CHANCE / math.sqrt(num_steps * max(1, report.num_groups - 1))
            if abs(mean) > max(bound, by_chance):
                found[cause] = Finding(
                    cause=cause,
                    figure=f"{figure}, in the mean of {num_steps} steps,",
                    value=mean,
                    bound=math.copysign(bound, mean),
                    badness=abs(mean) / bound,
                    where=f"step {report.step}",
                    remedy=_Remedies(self._settings).mixed_mini_batches(),
                )
        return found


def worst_findings(report: StepReport, settings: RunSettings, sane: SaneRange = SANE) -> dict[Cause, Finding]:
    """Returns the worst finding of each cause, over the step's stalenesses."""
    worst: dict[Cause, Finding] = {}
    for staleness, figures in report.by_staleness.items():
        where = f"step {report.step}, staleness {staleness}"
        for finding in findings(figures, staleness, settings, sane, where):
            if finding.cause not in worst or finding.badness > worst[finding.cause].badness:
                worst[finding.cause] = finding
    return worst


def findings(
    figures: Mapping[str, float], staleness: int, settings: RunSettings, sane: SaneRange, where: str = ""
) -> Iterator[Finding]:
    """Returns the figures of one staleness that are beyond their bounds."""
    if figures.get("trained_tokens", 0.0) < sane.min_tokens:
        return
    algorithm = settings.algorithm
    remedies = _Remedies(settings)
    is_same_weights = staleness == 0 or (algorithm.needs_behaviour and algorithm.behaviour == "trainer")
    above: list[tuple[Cause, str, float | None, float, str]] = [
        ("far", "behaviour_kl_k3", figures.get("behaviour_kl_k3"), sane.behaviour_kl_k3, remedies.closer()),
        ("clipped", "share of clipped tokens", _total(figures, _CLIPS), sane.clipped, remedies.smaller_steps()),
        ("left_out", "share of tokens left out", _total(figures, _LEFT_OUT), sane.left_out, remedies.closer()),
    ]
    if is_same_weights:
        mean, largest = figures.get("engine_diff_mean"), figures.get("engine_diff_max")
        above.append(("engine", "engine_diff_mean", mean, sane.engine_diff_mean, remedies.same_numbers()))
        above.append(("engine_outlier", "engine_diff_max", largest, sane.engine_diff_max, remedies.same_numbers()))
    share, of_responses = figures.get("effective_share"), figures.get("response_effective_share")
    below: list[tuple[Cause, str, float | None, float, str]] = [
        ("few_count", "effective_share", share, sane.effective_share, remedies.closer()),
        ("entropy", "entropy", figures.get("entropy"), sane.entropy, remedies.more_entropy()),
    ]
    if algorithm.weigh_by == "sequence":
        bound, remedy = sane.response_effective_share, remedies.closer()
        below.append(("few_responses_count", "response_effective_share", of_responses, bound, remedy))
    for cause, figure, value, bound, remedy in above:
        if value is not None and value > bound:
            yield Finding(
                cause=cause, figure=figure, value=value, bound=bound, badness=value / bound, where=where, remedy=remedy
            )
    for cause, figure, value, bound, remedy in below:
        if value is not None and value < bound:
            badness = bound / max(value, 1e-12)
            yield Finding(
                cause=cause, figure=figure, value=value, bound=bound, badness=badness, where=where, remedy=remedy
            )


_CLIPS = ("clipped_low", "clipped_high", "clipped_dual")
_LEFT_OUT = ("behaviour_capped", "rejected")


def _total(figures: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    found = [figures[name] for name in names if name in figures]
    return sum(found) if found else None


@dataclass(frozen=True, slots=True)
class _Remedies:
    """Remedies in the words of the settings, without those that are set already."""

    settings: RunSettings

    def same_numbers(self) -> str:
        trainer, policy = self.settings.trainer, self.settings.policy
        computes_less = trainer.autocast not in (None, "float32") or policy.dtype != "float32"
        options = ["compute in float32 (trainer.autocast: float32)"] if computes_less else []
        algorithm, placement = self.settings.algorithm, self.settings.schedule.placement
        if algorithm.needs_behaviour and algorithm.behaviour == "engine" and placement == "colocated":
            options.append("take the trainer's log-probs for the policy that generated (algorithm.behaviour: trainer)")
        return _either(options or ["look for what engine and trainer compute differently"])

    def closer(self) -> str:
        schedule, trainer = self.settings.schedule, self.settings.trainer
        options = []
        if schedule.max_staleness > 0:
            options.append(f"lower schedule.max_staleness ({schedule.max_staleness})")
        if trainer.lr_schedule == "constant":
            options.append("let the learning rate fall (trainer.lr_schedule: linear)")
        return _either([*options, f"lower trainer.lr ({trainer.lr:g})"])

    def smaller_steps(self) -> str:
        epochs = self.settings.schedule.epochs
        fewer = [f"fewer schedule.epochs ({epochs})"] if epochs > 1 else []
        return _either([f"lower trainer.lr ({self.settings.trainer.lr:g})", *fewer])

    def more_entropy(self) -> str:
        algorithm = self.settings.algorithm
        return _either(
            [
                f"raise algorithm.entropy_coef ({algorithm.entropy_coef:g})",
                f"lower trainer.lr ({self.settings.trainer.lr:g}), unless the policy has learnt what there is to learn",
            ]
        )

    def mixed_mini_batches(self) -> str:
        if self.settings.schedule.order == "completion":
            return "train groups in the order of their prompts (schedule.order: fixed)"
        return "shuffle the data, in which prompts of one kind come together"


def _either(options: list[str]) -> str:
    return ", or ".join(options)
