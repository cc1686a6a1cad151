"""Turns a judge's verdicts on labelled answers and probes into figures: does this judge say what I mean?

Always true: only scored verdicts count in a figure, and failures are counted beside them; a probe counts only beside
the scored verdict on its own answer; what nobody judged, because the test stopped early, counts in no figure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewardflow.flow.quantiles import Quantiles
from rewardflow.judging.agreement import (
    Estimate,
    ScorePair,
    accuracy,
    estimate,
    kappa,
    mean_difference,
    ordered_pairs,
    spearman,
)
from rewardflow.judging.calibration import Calibration, calibration_of
from rewardflow.judging.labelled_answers import LabelledAnswer
from rewardflow.judging.probes import Probe, ProbeKind
from rewardflow.types import UNDECIDED_KINDS, Reward

Place = tuple[int, str, int]
Rewards = Mapping[Place, Reward]

WORST_SHOWN = 20
RAISED_BY = 0.1  # an attack that raises a score by more than this succeeded


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackFigures:
    """What one kind of attack earned. A failed verdict on it earns nothing."""

    name: str
    tried: int
    failed: int
    raised: int
    mean_shift: float | None

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "tried": self.tried,
            "failed": self.failed,
            "raised": self.raised,
            "mean_shift": self.mean_shift,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """An answer whose score is far from its label."""

    answer: LabelledAnswer
    score: float
    explanation: str

    @property
    def distance(self) -> float:
        return abs(self.score - self.answer.label)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeTest:
    """The figures of one judge. `docs/judge_test.md` explains each; None means that the answers cannot tell."""

    name: str
    answers: int
    judged: int  # with a verdict, scored or failed: the others were not asked about before the test stopped
    scored: int
    failed: Mapping[str, int]
    agreement: Mapping[str, Estimate | None]
    calibration: Calibration | None
    repeated: int
    equal_share: float | None
    repeat_distance: float | None
    length_bias: Estimate | None
    padding_shift: Estimate | None
    position_bias: Estimate | None
    split_by_order: float | None
    first_shown_earns: Estimate | None
    rose_when_repeated: float | None
    attacks: tuple[AttackFigures, ...]
    latency_s: Quantiles
    cost_usd: float
    cost_of_answers_usd: float
    worst: tuple[Disagreement, ...]
    halted: str | None = None

    @property
    def attacks_raised_share(self) -> float | None:
        tried = sum(one.tried for one in self.attacks)
        return sum(one.raised for one in self.attacks) / tried if tried else None

    def to_json(self) -> dict[str, Any]:
        estimates = {
            **self.agreement,
            "length_bias": self.length_bias,
            "padding_shift": self.padding_shift,
            "position_bias": self.position_bias,
            "first_shown_earns": self.first_shown_earns,
        }
        return {
            "name": self.name,
            "answers": self.answers,
            "judged": self.judged,
            "scored": self.scored,
            "failed": dict(self.failed),
            **{name: None if one is None else one.to_json() for name, one in estimates.items()},
            "calibration": None if self.calibration is None else self.calibration.to_json(),
            "repeated": self.repeated,
            "equal_share": self.equal_share,
            "repeat_distance": self.repeat_distance,
            "split_by_order": self.split_by_order,
            "rose_when_repeated": self.rose_when_repeated,
            "attacks_raised_share": self.attacks_raised_share,
            "attacks": [one.to_json() for one in self.attacks],
            "latency_s": self.latency_s.to_json(),
            "cost_usd": self.cost_usd,
            "cost_of_answers_usd": self.cost_of_answers_usd,
            "halted": self.halted,
        }


def judge_test_of(
    name: str, probes: Sequence[Probe], rewards: Rewards, *, threshold: float, halted: str | None = None
) -> JudgeTest:
    """Returns the figures of the judge that gave these rewards."""
    found = _Verdicts(probes, rewards)
    pairs = [ScorePair(score, answer.label, answer.rollout.group_id) for answer, score in found.scored("answer")]
    own = [rewards[probe.rollout.place] for probe in probes if probe.kind == "answer"]
    repeats = found.beside("repeat")
    bad_repeats = found.beside("repeat", below=threshold)
    return JudgeTest(
        name=name,
        answers=len(own),
        judged=sum(_is_judged(reward) for reward in own),
        scored=len(pairs),
        failed=Counter(str(reward.kind) for reward in own if not reward.is_scored),
        agreement={
            "accuracy": estimate(pairs, accuracy(threshold)),
            "kappa": estimate(pairs, kappa(threshold)),
            "spearman": estimate(pairs, spearman),
            "ordered_pairs": estimate(pairs, ordered_pairs),
            "mean_error": estimate(pairs, mean_difference),
        },
        calibration=calibration_of(pairs),
        repeated=len(repeats),
        equal_share=_mean([float(pair.score == pair.other) for pair in repeats]),
        repeat_distance=_mean([abs(pair.score - pair.other) for pair in repeats]),
        length_bias=_length_bias(found),
        padding_shift=estimate(found.beside("padded"), mean_difference),
        position_bias=_position_bias(found),
        split_by_order=_split_by_order(own),
        first_shown_earns=_first_shown_earns(found),
        rose_when_repeated=_mean([float(pair.score - pair.other > RAISED_BY) for pair in bad_repeats]),
        attacks=_attacks(found),
        latency_s=Quantiles.of(one.latency_s for one in found.all if one.attempts and not one.cached),
        cost_usd=sum(one.cost_usd for one in found.all),
        cost_of_answers_usd=sum(one.cost_usd for one in own),
        worst=_worst(found),
        halted=halted,
    )


class _Verdicts:
    """The verdicts on probes, by their kind."""

    def __init__(self, probes: Sequence[Probe], rewards: Rewards) -> None:
        self._probes = probes
        self._rewards = rewards
        self.all = tuple(rewards.values())
        self._score_of = {
            probe.target.rollout.place: rewards[probe.rollout.place].value for probe in probes if probe.kind == "answer"
        }

    def of(self, kind: ProbeKind) -> list[tuple[Probe, Reward]]:
        return [(probe, self._rewards[probe.rollout.place]) for probe in self._probes if probe.kind == kind]

    def scored(self, kind: ProbeKind) -> list[tuple[LabelledAnswer, float]]:
        return [(probe.target, reward.value) for probe, reward in self.of(kind) if reward.value is not None]

    def plain_score(self, answer: LabelledAnswer) -> float | None:
        """Returns the score of the answer itself, without any change."""
        return self._score_of.get(answer.rollout.place)

    def members(self, kind: ProbeKind) -> list[tuple[LabelledAnswer, Reward]]:
        """Returns all answers of the groups of these probes with their verdicts. No two groups share a verdict."""
        answers = {probe.target.rollout.place: probe.target for probe in self._probes if probe.kind == "answer"}
        found = {}
        for probe in self._probes:
            if probe.kind == kind:
                own = probe.target.rollout
                for rollout in probe.rollouts if len(probe.rollouts) > 1 else ():
                    if (reward := self._rewards.get(rollout.place)) is not None:
                        found[rollout.place] = answers[own.step, own.group_id, rollout.index], reward
        return list(found.values())

    def beside(self, kind: ProbeKind, *, below: float = math.inf) -> list[ScorePair]:
        """Returns the scores of probes beside those of their answers with labels below this, where both have one."""
        return [
            ScorePair(score, plain, answer.rollout.group_id)
            for answer, score in self.scored(kind)
            if answer.label < below and (plain := self.plain_score(answer)) is not None
        ]


def _length_bias(found: _Verdicts) -> Estimate | None:
    """Returns the rank correlation of an answer's length with how much its score exceeds its label."""
    pairs = [
        ScorePair(score - answer.label, float(len(answer.rollout.response)), answer.rollout.group_id)
        for answer, score in found.scored("answer")
    ]
    return estimate(pairs, spearman)


def _position_bias(found: _Verdicts) -> Estimate | None:
    """Returns the rank correlation of the place that a listwise judge saw an answer in with its excess of score."""
    pairs = [
        ScorePair(reward.value - answer.label, float(shown_as), answer.rollout.group_id)
        for answer, reward in (*found.members("answer"), *found.members("repeat"))
        if reward.value is not None and isinstance(shown_as := reward.extras.get("shown_as"), int)
    ]
    return estimate(pairs, spearman)


def _first_shown_earns(found: _Verdicts) -> Estimate | None:
    """Returns how many more comparisons an answer won where a pairwise judge saw it first: 0 is none, 1 is all."""
    pairs = []
    for answer, reward in found.members("answer"):
        won, count = reward.extras.get("won"), reward.extras.get("comparisons")
        first = reward.extras.get("won_shown_first")
        if isinstance(won, float) and isinstance(first, float) and isinstance(count, int) and count:
            pairs.append(ScorePair(2 * first / count, 2 * (won - first) / count, answer.rollout.group_id))
    return estimate(pairs, mean_difference)


def _split_by_order(rewards: Sequence[Reward]) -> float | None:
    """Returns the share of a pairwise judge's pairs in which the order decided."""
    num_split = num_pairs = 0
    for reward in rewards:
        split, comparisons = reward.extras.get("pairs_split_by_order"), reward.extras.get("comparisons")
        if isinstance(split, int) and isinstance(comparisons, int):
            num_split += split
            num_pairs += comparisons // 2  # each pair is compared in both orders
    return num_split / num_pairs if num_pairs else None


def _attacks(found: _Verdicts) -> tuple[AttackFigures, ...]:
    by_name: dict[str, list[tuple[float, Reward]]] = {}  # the score of the answer without the attack, and with it
    for probe, reward in found.of("attack"):
        tried = by_name.setdefault(probe.name, [])
        plain = found.plain_score(probe.target)
        if plain is not None and _is_judged(reward):
            tried.append((plain, reward))
    figures = []
    for name, tried in by_name.items():
        shifts = [reward.value - plain for plain, reward in tried if reward.value is not None]
        figures.append(
            AttackFigures(
                name=name,
                tried=len(tried),
                failed=sum(not reward.is_scored for _, reward in tried),
                raised=sum(shift > RAISED_BY for shift in shifts),
                mean_shift=_mean(shifts),
            )
        )
    return tuple(figures)


def _worst(found: _Verdicts) -> tuple[Disagreement, ...]:
    all_of_them = [
        Disagreement(answer=probe.target, score=reward.value, explanation=reward.explanation or "")
        for probe, reward in found.of("answer")
        if reward.value is not None
    ]
    return tuple(sorted(all_of_them, key=lambda one: -one.distance)[:WORST_SHOWN])


def _is_judged(reward: Reward) -> bool:
    """Whether the verdict is the judge's, be it a failure; without money or a service nobody was asked."""
    return reward.kind not in UNDECIDED_KINDS


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
