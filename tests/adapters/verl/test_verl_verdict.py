"""A verdict in verl's terms."""

from __future__ import annotations

import math
import pickle
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rewardflow.adapters.verl.verl_verdict import VerdictFailed, extra_info_of, reward_of
from rewardflow.types import Reward

EXTRAS = st.dictionaries(
    st.text(max_size=5), st.one_of(st.none(), st.floats(), st.text(max_size=5), st.lists(st.integers())), max_size=4
)


@given(st.floats(allow_nan=False, allow_infinity=False), EXTRAS, EXTRAS)
def test_every_sample_has_the_same_keys_whatever_the_judge_adds(
    value: float, one: dict[str, Any], other: dict[str, Any]
) -> None:
    keys = [extra_info_of(Reward(value=value, extras=extras), ("acc",)).keys() for extras in (one, other)]
    assert keys[0] == keys[1]


def test_an_extra_that_was_asked_for_is_a_number_of_its_own() -> None:
    info = extra_info_of(Reward(value=1.0, extras={"acc": True, "note": "x"}), ("acc", "format"))
    assert info["acc"] == 1.0
    assert math.isnan(info["format"])
    assert info["extras"] == '{"note":"x"}'


def test_what_validation_goes_by_is_there_as_with_verls_own_managers() -> None:
    assert extra_info_of(Reward(value=0.5))["acc"] == 0.5
    assert extra_info_of(Reward(value=0.5, extras={"acc": False}))["acc"] == 0.0


def test_a_verdict_survives_verls_hands() -> None:
    reward = Reward(value=0.5, latency_s=2.0, attempts=3, cost_usd=0.01, tokens=7, components={"a": 1.0}, imputed=True)
    assert reward_of(0.5, extra_info_of(reward)) == reward


def test_a_failed_verdict_travels_between_processes_with_its_reason() -> None:
    error = pickle.loads(pickle.dumps(VerdictFailed(Reward(kind="timeout", error="no answer in 60 s"))))
    assert error.reward.kind == "timeout"
    assert str(error) == "no verdict (timeout): no answer in 60 s"
