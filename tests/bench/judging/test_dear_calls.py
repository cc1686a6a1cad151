"""The task that shows what an escalation saves: the cheap judge cannot teach it, and the escalation can."""

from __future__ import annotations

import pytest

from rewardflow.bench.judging.dear_calls import GROUP_SIZE, NUM_PROMPTS, softmax, train


def test_the_dear_judge_teaches_what_the_cheap_one_cannot_and_the_escalation_asks_it_less() -> None:
    cheap, dear, escalation = (train(arm, seed=7, steps=60) for arm in ("cheap", "dear", "escalation"))
    assert cheap.final_reward < 0.5 < min(dear.final_reward, escalation.final_reward)
    assert (cheap.dear_calls, dear.dear_calls) == (0, 60 * NUM_PROMPTS * GROUP_SIZE)
    assert escalation.dear_calls <= 0.3 * dear.dear_calls


def test_a_seed_gives_the_same_run_again() -> None:
    assert train("escalation", seed=3, steps=5) == train("escalation", seed=3, steps=5)


def test_shares_add_up_to_one() -> None:
    assert sum(softmax([1000.0, 0.0, -1000.0])) == pytest.approx(1.0)
