"""A verdict in verl's terms."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.adapters.verl.verl_verdict import OWN_KEYS, VerdictFailed, extra_info_of, reward_of
from rewardflow.types import Reward

EXTRAS = st.dictionaries(
    st.text(max_size=5), st.one_of(st.none(), st.floats(), st.text(max_size=5), st.lists(st.integers())), max_size=4
)


@given(st.floats(allow_nan=False, allow_infinity=False), EXTRAS, EXTRAS)
def test_where_verl_wants_one_set_of_keys_every_sample_has_it_whatever_the_judge_adds(
    value: float, one: dict[str, Any], other: dict[str, Any]
) -> None:
    rewards = [Reward(value=value, extras=extras) for extras in (one, other)]
    assert [extra_info_of(reward, with_numbers=False).keys() for reward in rewards] == [
        dict.fromkeys(OWN_KEYS).keys()
    ] * 2


def test_the_judges_numbers_have_their_own_names_and_never_replace_ours() -> None:
    info = extra_info_of(Reward(value=1.0, extras={"acc": True, "words": 3, "note": "12", "tokens": 9}))
    assert (info["acc"], info["words"], info["tokens"]) == (1.0, 3.0, 0)
    assert "note" not in info
    assert json.loads(info["extras"]) == {"acc": True, "words": 3, "note": "12", "tokens": 9}


class Raises:
    def __float__(self) -> float:
        raise RuntimeError("no number")

    __str__ = __repr__ = __float__  # type: ignore[assignment]


@pytest.mark.parametrize(
    "odd", [10**400, 10**5000, {"a": [10**5000]}, Raises()], ids=["long", "longer", "nested", "own"]
)
def test_an_odd_value_beside_the_score_loses_neither_the_score_nor_the_other_numbers(odd: Any) -> None:
    info = extra_info_of(Reward(value=0.5, extras={"words": 3, "acc": odd, "pred": odd, "odd": odd}))
    assert (info["score"], info["words"]) == (0.5, 3.0)
    assert reward_of(0.5, info).extras == {"words": 3.0, "acc": None, "pred": None, "odd": None}


def test_the_answer_is_text_in_every_sample_so_that_verl_can_take_a_vote_on_it() -> None:
    answers = ["12", 12, 12.5, True, ["a"], None]
    infos = [extra_info_of(Reward(value=1.0, extras={"pred": answer})) for answer in answers]
    assert [info.get("pred") for info in infos] == ["12", "12", "12.5", "true", '["a"]', None]


def test_what_validation_goes_by_is_there_as_with_verls_own_managers() -> None:
    assert extra_info_of(Reward(value=0.5))["acc"] == 0.5
    assert extra_info_of(Reward(value=0.5, extras={"acc": False}))["acc"] == 0.0
    assert extra_info_of(Reward(value=0.5, extras={"acc": None}))["acc"] == 0.5


def test_a_verdict_survives_verls_hands() -> None:
    reward = Reward(value=0.5, latency_s=2.0, attempts=3, cost_usd=0.01, tokens=7, components={"a": 1.0}, imputed=True)
    assert reward_of(0.5, extra_info_of(reward)) == reward


def test_of_extras_that_are_no_numbers_only_the_names_come_back() -> None:
    extras = {"words": 3, "note": "long text"}
    assert reward_of(1.0, extra_info_of(Reward(value=1.0, extras=extras))).extras == {"words": 3.0, "note": None}


def test_a_failed_verdict_travels_between_processes_with_its_reason() -> None:
    error = pickle.loads(pickle.dumps(VerdictFailed(Reward(kind="timeout", error="no answer in 60 s"))))
    assert error.reward.kind == "timeout"
    assert str(error) == "no verdict (timeout): no answer in 60 s"
