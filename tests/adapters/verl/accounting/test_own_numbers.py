"""A reward's own numbers in verl's metrics."""

from __future__ import annotations

import logging

import pytest

from rewardflow.adapters.verl.accounting.own_numbers import OwnNumbers
from rewardflow.types import Reward


def test_every_number_is_averaged_over_the_verdicts_that_have_it() -> None:
    rewards = [Reward(value=1.0, extras={"words": 2, "ok": True}), Reward(value=0.0, extras={"words": 4})]
    assert OwnNumbers().metrics(rewards) == {"rewardflow/reward/words": 3.0, "rewardflow/reward/ok": 1.0}


def test_what_is_no_number_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    numbers = OwnNumbers()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert numbers.metrics([Reward(value=1.0, extras={"note": "long"}), Reward(kind="timeout")]) == {}
    assert caplog.text.count("the reward's 'note' is no number") == 1
