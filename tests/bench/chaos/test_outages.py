"""Outages, poison and absurd headers on virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest

from rewardflow.bench.chaos.outages import _check, _Weather, absurd_headers, outages, poison
from rewardflow.types import Reward

WEATHER = _Weather(seed=1, poisoned=frozenset({1}))


@pytest.mark.parametrize("seed", [32, 41])  # 64 and 16 slots: answers from before the outage arrive during it
def test_an_outage_costs_no_verdict(seed: int, tmp_path: Path) -> None:
    assert outages(seed, tmp_path).complaints == ()


def test_rollouts_that_always_hang_cost_only_themselves(tmp_path: Path) -> None:
    tried = poison(19, tmp_path)
    assert tried.count == 400
    assert tried.complaints == ()


def test_absurd_headers_stop_nothing(tmp_path: Path) -> None:
    assert absurd_headers(18, tmp_path).complaints == ()


def test_a_missing_a_failed_and_an_invented_verdict_are_found() -> None:
    verdicts = {0: Reward(kind="service", error="down"), 1: Reward(value=0.5)}
    assert len(list(_check(WEATHER, 3, verdicts))) == 3
    assert list(_check(WEATHER, 2, {0: Reward(value=WEATHER.truth_of(0)), 1: Reward(kind="timeout")})) == []
