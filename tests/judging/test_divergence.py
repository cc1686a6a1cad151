"""The audit's test stays silent in honest runs, as often as it says, and hears a judge that is exploited."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.judging.divergence import AuditedStep, Divergence, DivergenceTest, Moments, normal_deviate, windows_for

STEPS = 60


def alarm_of(
    seed: int, training: Callable[[int], float], audit: Callable[[int], float], *, rollouts: int = 20
) -> Divergence | None:
    """One run: both judges score pass or fail with these chances, for the same rollouts."""
    draw = random.Random(seed)
    test = DivergenceTest(alpha=0.02, planned_steps=STEPS)
    for step in range(STEPS):
        scores = [float(draw.random() < training(step)) for _ in range(rollouts)]
        audits = [float(draw.random() < audit(step)) for _ in range(rollouts)]
        found = test.add(AuditedStep(step, Moments.of(scores), Moments.of(audits)))
        if found is not None:
            return found
    return None


def test_honest_runs_rarely_raise_an_alarm() -> None:
    flat = sum(alarm_of(seed, lambda step: 0.5, lambda step: 0.5) is not None for seed in range(60))
    learning = sum(
        alarm_of(seed, lambda step: 0.2 + 0.7 * step / STEPS, lambda step: 0.3 + 0.5 * step / STEPS) is not None
        for seed in range(60)
    )
    rising_alone = sum(
        alarm_of(seed, lambda step: 0.2 + 0.7 * step / STEPS, lambda step: 0.5) is not None for seed in range(60)
    )
    assert (flat, learning) == (0, 0)
    assert rising_alone <= 0.02 * 60 + 2, "only the fall of the audit is left to chance here"


def with_step_effect(draw: random.Random, mean: float, *, effect: float, count: int = 100) -> Moments:
    """Scores around a mean that moves from step to step, because the steps have different prompts."""
    of_step = mean + draw.gauss(0, effect) + draw.gauss(0, 0.3 / count**0.5)
    return Moments(count, count * of_step, count * (of_step**2 + 0.09))


@pytest.mark.parametrize("effect", [0.0, 0.03, 0.1, 0.3])
def test_steps_whose_prompts_differ_do_not_look_like_a_fall(effect: float) -> None:
    """The training judge's score rises, so that only the audit's chance is left; it moves more than rollouts tell."""
    alarms = 0
    for seed in range(30):
        draw = random.Random(seed)
        test = DivergenceTest(alpha=0.02, planned_steps=60)
        for step in range(60):
            training = with_step_effect(draw, 2.0 * step / 60, effect=0.0)
            audit = with_step_effect(draw, 0.5, effect=effect)
            if test.add(AuditedStep(step, training, audit)) is not None:
                alarms += 1
                break
    assert alarms <= 2


def test_a_fall_is_also_heard_among_steps_that_differ() -> None:
    draw = random.Random(1)
    test = DivergenceTest(alpha=0.02, planned_steps=60)
    alarms = []
    for step in range(60):
        share = max(0.0, min(1.0, (step - 20) / 10))
        training, audit = 0.5 + 0.4 * share, 0.5 - 0.4 * share
        found = test.add(
            AuditedStep(step, with_step_effect(draw, training, effect=0.1), with_step_effect(draw, audit, effect=0.1))
        )
        alarms += [] if found is None else [found.step]
    assert len(alarms) == 1
    assert 20 < alarms[0] <= 40


def test_students_distribution_is_wider_than_the_normal_one() -> None:
    """Quantiles of tables: both tails beyond 4.303 have 5 % with two degrees of freedom, as beyond 1.96."""
    assert normal_deviate(4.303, 2) == pytest.approx(1.96, abs=0.03)
    assert normal_deviate(-2.228, 10) == pytest.approx(-1.96, abs=0.01)
    assert normal_deviate(3.0, 1e9) == pytest.approx(3.0, abs=1e-6)
    assert normal_deviate(0.0, 5) == 0.0


def test_a_judge_that_is_exploited_is_heard() -> None:
    def training(step: int) -> float:
        return 0.5 if step < 20 else min(0.95, 0.5 + 0.05 * (step - 20))

    def audit(step: int) -> float:
        return 0.5 if step < 20 else max(0.1, 0.5 - 0.04 * (step - 20))

    alarms = [alarm_of(seed, training, audit) for seed in range(50)]
    assert all(alarm is not None and 20 < alarm.step <= 40 for alarm in alarms)
    first = alarms[0]
    assert first is not None
    assert "the policy may exploit the training judge" in str(first)
    assert first.to_json()["training_after"] > first.training_before


def test_an_alarm_is_raised_once_and_steps_may_come_in_any_order() -> None:
    def steps() -> list[AuditedStep]:
        return [
            AuditedStep(step, Moments.of([float(step >= 8)] * 30), Moments.of([float(step < 8)] * 30))
            for step in range(16)
        ]

    test = DivergenceTest(alpha=0.02, planned_steps=16)
    found = [alarm for one in steps() if (alarm := test.add(one)) is not None]
    assert len(found) == 1
    assert found[0].window == 4
    shuffled = DivergenceTest(alpha=0.02, planned_steps=16)
    order = steps()
    random.Random(1).shuffle(order)
    assert sum(shuffled.add(one) is not None for one in order) == 1


def test_few_rollouts_and_short_runs_say_nothing() -> None:
    assert alarm_of(0, lambda step: float(step >= 30), lambda step: float(step < 30), rollouts=1) is not None
    short = DivergenceTest(alpha=0.02, planned_steps=7)
    assert windows_for(7) == ()
    assert all(
        short.add(AuditedStep(step, Moments.of([1.0] * 50), Moments.of([0.0] * 50))) is None for step in range(7)
    )
    assert short.add(AuditedStep(9, Moments(), Moments())) is None


@pytest.mark.parametrize(("alpha", "steps"), [(0.0, 10), (1.0, 10), (0.02, 0)])
def test_impossible_settings_are_refused(alpha: float, steps: int) -> None:
    with pytest.raises(InvalidInput, match="must"):
        DivergenceTest(alpha=alpha, planned_steps=steps)
