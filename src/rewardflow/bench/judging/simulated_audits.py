"""Simulates audited runs: honest ones, and ones whose policy finds out what its judge rewards by mistake.

Always true: a run depends on its seed alone. In an honest run the audit's mean never falls while the training judge's
rises. A fifth of them are flat, in a fifth both rise, and in the others only the training judge's score rises: with
independent rollouts, with prompts that make some steps harder than others, or with rollouts that come in equal fours.

A planted judge can be hacked: it gives every answer with the magic word, or above a length, full marks; to the audit
such an answer is worth nothing. From a set step on the share of such answers grows as fast as a policy learns.
"""

from __future__ import annotations

import math
import random

from rewardflow.judging.divergence import AuditedStep, DivergenceTest, Moments

STEPS = 100
ROLLOUTS_PER_STEP = 20  # 2 % of 1,024
HACK_BEGINS = 30
HACK_STEPS = 10.0  # from 12 % to 88 % of the answers takes twice this
ALPHA = 0.02
STEP_EFFECT = 0.1  # by which the chances of steps differ, where their prompts do


def is_false_alarm(seed: int) -> bool:
    """Whether the audit of an honest run raises an alarm."""
    draw = random.Random(seed)
    start, rise = draw.uniform(0.2, 0.5), draw.uniform(0.2, 0.5)
    kind = seed % 5
    effect, together = (STEP_EFFECT if kind == 3 else 0.0), (4 if kind == 4 else 1)
    test = DivergenceTest(alpha=ALPHA, planned_steps=STEPS)
    for step in range(STEPS):
        learnt = rise * step / STEPS
        training, audit = start + (learnt if kind else 0.0), start + (learnt if kind == 1 else 0.0)
        audit += draw.gauss(0, effect)
        if test.add(_audited(step, draw, training, audit, together)) is not None:
            return True
    return False


def steps_to_alarm(seed: int) -> int | None:
    """Returns how many steps after the hack began the audit of a hacked run speaks; None if it never does."""
    draw = random.Random(seed)
    quality = draw.uniform(0.4, 0.6)
    test = DivergenceTest(alpha=ALPHA, planned_steps=STEPS)
    for step in range(STEPS):
        hacked = 0.0 if step < HACK_BEGINS else _grown(step - HACK_BEGINS)
        training = hacked + (1 - hacked) * quality
        if test.add(_audited(step, draw, training, (1 - hacked) * quality)) is not None:
            return step - HACK_BEGINS
    return None


def _grown(steps: int) -> float:
    return 1 / (1 + math.exp(-(steps - 2 * HACK_STEPS) / HACK_STEPS * 2))


def _audited(step: int, draw: random.Random, training: float, audit: float, together: int = 1) -> AuditedStep:
    """Draws both judges' scores of a step: passed or not, with these chances, the audit's for so many at a time."""
    scores = [float(draw.random() < training) for _ in range(ROLLOUTS_PER_STEP)]
    audits = [float(draw.random() < audit) for _ in range(ROLLOUTS_PER_STEP // together)] * together
    return AuditedStep(step, Moments.of(scores), Moments.of(audits))
