"""Every form a reward may return, and every form it may not."""

from __future__ import annotations

import math
import pickle
from decimal import Decimal
from typing import Any, NamedTuple

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.observe.redact import register_secret
from rewardflow.reward.code.results import apply_post_process, parse_result, parse_results, scores_for_post_process
from rewardflow.types import Reward


class Scalar:
    """Like a numpy or torch scalar: not a float, but `item()` gives one."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def item(self) -> Any:
        return self.value


class Array:
    """Like a numpy array or a tensor: `tolist()` gives plain values, `item()` works for one element only."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def tolist(self) -> list[Any]:
        return list(self.values)

    def item(self) -> Any:
        if len(self.values) != 1:
            raise ValueError("can only convert an array of size 1 to a Python scalar")
        return self.values[0]


class Hostile:
    """Raises on every operation."""

    def __float__(self) -> float:
        raise ZeroDivisionError

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __str__(self) -> str:
        raise RuntimeError("no str")


class HostileMapping(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no items")


class Judgement(NamedTuple):
    score: float
    query: str
    explanation: str


# -- one result --


@pytest.mark.parametrize(
    "result",
    [
        0.5,
        Decimal("0.5"),
        Scalar(0.5),
        Array(0.5),
        (0.5,),
        [0.5],
        {"score": 0.5},
        {"score": Scalar(0.5)},
        (Scalar(0.5),),
    ],
)
def test_a_finite_number_in_any_form_is_a_score(result: Any) -> None:
    reward = parse_result(result)
    assert (reward.value, reward.status, reward.kind, reward.error) == (0.5, "scored", None, None)


@pytest.mark.parametrize(
    "result", [1, True, Scalar(1), Scalar(True), {"score": 1}, Reward(value=1), Reward(value=True)]
)
def test_a_score_is_always_a_plain_float(result: Any) -> None:
    assert type(parse_result(result).value) is float


def test_a_triple_is_score_query_and_explanation() -> None:
    for result in ((0.5, "Q", "E"), [0.5, "Q", "E"], Judgement(0.5, "Q", "E")):
        reward = parse_result(result)
        assert (reward.value, reward.query, reward.explanation) == (0.5, "Q", "E")


def test_a_pair_is_score_and_query() -> None:
    reward = parse_result((0.5, "Q"))
    assert (reward.value, reward.query, reward.explanation) == (0.5, "Q", None)


def test_a_query_of_messages_is_kept_as_json() -> None:
    messages = [{"role": "user", "content": "Rate: 4"}]
    query = parse_result((1.0, messages, None)).query
    assert query is not None
    assert orjson.loads(query) == messages


def test_a_query_that_is_no_json_and_has_no_text_still_costs_no_score() -> None:
    reward = parse_result((1.0, Hostile(), "\ud800"))
    assert reward.value == 1.0
    assert reward.query is not None
    assert reward.explanation == "\ud800"


def test_known_keys_of_a_mapping_are_recognised_and_the_rest_are_extras() -> None:
    reward = parse_result(
        {
            "score": 0.5,
            "query": "Q",
            "explanation": "E",
            "components": {"format": 1, "judge": None, "length": math.nan},
            "cost_usd": 0.002,
            "tokens": 812,
            "acc": True,
            7: "seven",
        }
    )
    assert reward == Reward(
        value=0.5,
        query="Q",
        explanation="E",
        components={"format": 1.0, "judge": None, "length": None},
        cost_usd=0.002,
        tokens=812,
        extras={"acc": True, "7": "seven"},
    )


def test_extras_may_differ_from_sample_to_sample() -> None:
    first, second = parse_results([{"score": 1, "acc": True}, {"score": 0, "pred": "7"}], 2)
    assert (first.extras, second.extras) == ({"acc": True}, {"pred": "7"})


@pytest.mark.parametrize(
    "extras",
    [
        *({"components": 3}, {"cost_usd": -1.0}, {"cost_usd": "free"}, {"cost_usd": 1e300}),
        *({"tokens": math.nan}, {"tokens": None}, {"tokens": 1.5e308}, {"tokens": 10**400}),
    ],
)
def test_a_known_key_with_an_unfit_value_stays_in_the_extras(extras: dict[str, Any]) -> None:
    reward = parse_result({"score": 1.0, **extras})
    assert reward.value == 1.0
    assert reward.extras.keys() == extras.keys()


def test_the_users_mapping_is_left_alone() -> None:
    result = {"score": 1.0, "query": "Q", "acc": 1}
    parse_result(result)
    assert result == {"score": 1.0, "query": "Q", "acc": 1}


@pytest.mark.parametrize(
    "odd",
    [
        {"extras": None},
        {"extras": [1]},
        {"components": None},
        {"components": {"form": "good"}},
        {"components": {"form": math.nan}},
        {"cost_usd": None},
        {"cost_usd": math.nan},
        {"cost_usd": -5.0},
        {"tokens": "12"},
        {"tokens": None},
        {"tokens": 10**300},
        {"cost_usd": 1e308},
        {"kind": object()},
        {"query": [{"role": "user"}]},
        {"explanation": ["a"]},
        {"error": ValueError("odd")},
    ],
    ids=lambda odd: str(odd).partition(" at 0x")[0],
)
def test_a_reward_record_with_an_odd_field_keeps_its_score_and_holds_only_what_its_fields_say(
    odd: dict[str, Any],
) -> None:
    parsed = parse_result(Reward(value=0.5, **odd))
    assert parsed.value == 0.5
    assert all(value is None or math.isfinite(value) for value in parsed.components.values())
    assert dict(parsed.extras) == {}
    assert parsed.kind is None
    assert 0.0 <= parsed.cost_usd + parsed.tokens <= 2e12
    assert all(isinstance(text, str | None) for text in (parsed.query, parsed.explanation, parsed.error))


def test_a_key_in_the_error_of_a_reward_record_is_redacted() -> None:
    assert "sk-abcdefgh12345678" not in str(parse_result(Reward(kind="service", error="bad key sk-abcdefgh12345678")))


def test_no_piece_of_a_key_is_left_where_the_repr_of_a_result_is_cut() -> None:
    register_secret("Abcd1234efgh5678")
    for length in range(40, 110):
        result = ("a" * length + "Abcd1234efgh5678" + "b" * 300).encode()
        assert "Abcd" not in str(parse_result(result).error)
        assert "Abcd" not in str(parse_result({"body": result}).error)


def test_an_extra_that_is_no_text_is_replaced_if_it_shows_a_key() -> None:
    register_secret("Abcd1234efgh5678")
    reward = parse_result({"score": 1.0, "body": b"key Abcd1234efgh5678", "error": ValueError("Abcd1234efgh5678")})
    assert (reward.value, reward.extras) == (1.0, {"body": "[redacted]", "error": "[redacted]"})


def test_a_reward_is_returned_as_it_is_but_as_a_copy() -> None:
    for reward in (Reward(value=0.5, query="Q"), Reward(kind="service", error="down")):
        assert parse_result(reward) == reward
        assert parse_result(reward) is not reward, "users may return one object for many rollouts"


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (None, "None"),
        (math.nan, "float nan"),
        (-math.inf, "float -inf"),
        ("0.5", "str '0.5'"),
        (b"1", "bytes b'1'"),
        (1j, "complex 1j"),
        ((), "tuple ()"),
        ((1, 2, 3, 4), "tuple (1, 2, 3, 4)"),
        ({1.0}, "set {1.0}"),
        (Scalar("0.5"), "Scalar "),
        (Array(1.0, 2.0), "Array "),
        (10**400, "int 1000"),
        (object(), "object "),
        (Reward, "type "),
        ((None, "Q", "E"), "None as the score in tuple (None, 'Q', 'E')"),
        ({"score": "high"}, "str 'high' as the score in dict {'score': 'high'}"),
        ({"reward": 1.0}, "a mapping without 'score'"),
        (Hostile(), "Hostile "),
        (HostileMapping(score=1.0), "no items"),
    ],
)
def test_anything_else_fails_and_says_what_was_returned_and_what_is_allowed(result: Any, shown: str) -> None:
    reward = parse_result(result)
    assert (reward.status, reward.kind, reward.value) == ("failed", "unparsable", None)
    assert reward.error is not None
    assert shown in reward.error
    assert "allowed: " in reward.error or "raised" in reward.error


def test_a_failed_result_keeps_what_was_asked_and_paid() -> None:
    reward = parse_result({"score": None, "query": "Q", "explanation": "no verdict", "cost_usd": 0.01, "raw": "??"})
    assert reward.status == "failed"
    assert (reward.query, reward.explanation, reward.cost_usd, reward.extras) == (
        "Q",
        "no verdict",
        0.01,
        {"raw": "??"},
    )
    assert parse_result((math.nan, "Q", "E")).query == "Q"


def test_a_huge_result_makes_a_short_message() -> None:
    for result in ("x" * 10**6, ["y" * 500] * 10**4, {"k" * 10**5: 1}):
        assert len(parse_result(result).error or "") < 700


def test_a_coroutine_is_closed_and_the_message_says_async_def() -> None:
    async def judge() -> float:
        return 1.0

    for reward in (parse_result(judge()), parse_results(judge(), 2)[1], parse_result((judge(), "Q"))):
        assert reward.kind == "unparsable"
        assert "returned a coroutine: declare it with async def" in (reward.error or "")


# -- a group's results --


@pytest.mark.parametrize(
    "result", [[1, 0.5], (1, 0.5), Array(1.0, 0.5), [Scalar(1), {"score": 0.5}], Array([1], [0.5])]
)
def test_a_group_takes_a_list_a_tuple_an_array_or_a_tensor(result: Any) -> None:
    assert [reward.value for reward in parse_results(result, 2)] == [1.0, 0.5]


@pytest.mark.parametrize("result", [[], [1.0], [1.0] * 3, Array(1.0)])
def test_a_wrong_number_of_results_fails_the_whole_group(result: Any) -> None:
    count = len(result.values) if isinstance(result, Array) else len(result)
    rewards = parse_results(result, 2)
    assert [reward.kind for reward in rewards] == ["unparsable"] * 2
    assert f"returned {count} results for a group of 2" in (rewards[0].error or "")


@pytest.mark.parametrize("result", [1.0, None, "ab", {"score": 1.0}, Reward(value=1.0), (x for x in (1.0, 2.0)), b"ab"])
def test_what_is_no_list_fails_the_whole_group(result: Any) -> None:
    rewards = parse_results(result, 2)
    assert [reward.kind for reward in rewards] == ["unparsable"] * 2
    assert "one result per rollout" in (rewards[0].error or "")


def test_one_bad_result_fails_alone() -> None:
    assert [reward.value for reward in parse_results([1.0, None, 0.5], 3)] == [1.0, None, 0.5]


KEYS = st.sampled_from(["score", "query", "components", "tokens"]) | st.integers() | st.text(max_size=3)
RESULTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.complex_numbers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner),
    max_leaves=8,
)


@given(RESULTS, st.integers(min_value=1, max_value=4))
def test_whatever_is_returned_every_rollout_gets_one_reward_that_is_finite_or_failed(result: Any, count: int) -> None:
    rewards = (parse_result(result), *parse_results(result, count))
    assert len(rewards) == 1 + count
    for reward in rewards:
        assert reward.value is None or (type(reward.value) is float and math.isfinite(reward.value))
        assert (reward.value is None) == (reward.kind is not None) == (reward.error is not None)


# -- post_process_scores --

SCORED = Reward(value=0.5, query="Q", cost_usd=0.01)
FAILED = Reward(kind="timeout", error="no answer in 60 s")


def test_failed_rewards_are_shown_as_nan() -> None:
    scores = scores_for_post_process((SCORED, FAILED))
    assert scores[0] == 0.5
    assert math.isnan(scores[1])


def test_a_finite_value_replaces_a_score_and_keeps_the_rest() -> None:
    (reward,) = apply_post_process((SCORED,), [2])
    assert reward == Reward(value=2.0, query="Q", cost_usd=0.01)
    assert type(reward.value) is float


def test_a_finite_value_for_a_failure_is_scored_imputed_and_keeps_the_error() -> None:
    _, reward = apply_post_process((SCORED, FAILED), [0.5, 0.0])
    assert (reward.value, reward.status, reward.imputed, reward.error) == (0.0, "scored", True, "no answer in 60 s")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(math.nan, "returned nan"), (None, "returned None"), (math.inf, "returned inf"), ("a", "str 'a'")],
)
def test_no_number_for_a_score_makes_it_failed_and_leaves_a_failure_as_it_was(value: Any, shown: str) -> None:
    first, second = apply_post_process((SCORED, FAILED), [value, value])
    assert (first.value, first.status, first.kind, first.cost_usd) == (None, "failed", "unparsable", 0.01)
    assert f"post_process_scores {shown}" in (first.error or "") or shown in (first.error or "")
    assert second is FAILED


def test_rewards_that_did_not_change_are_the_same_objects() -> None:
    first, second = apply_post_process((SCORED, FAILED), Array(0.5, math.nan))
    assert first is SCORED
    assert second is FAILED


@pytest.mark.parametrize("returned", [None, 1.0, "ab", [0.5], [0.5] * 3, {0: 1.0, 1: 2.0}])
def test_a_wrong_length_or_type_fails_the_whole_group_as_a_user_error(returned: Any) -> None:
    rewards = apply_post_process((SCORED, FAILED), returned)
    assert [(reward.status, reward.kind) for reward in rewards] == [("failed", "user_error")] * 2
    assert "post_process_scores returned" in (rewards[0].error or "")
    assert "for a group of 2" in (rewards[0].error or "")
    assert rewards[0].cost_usd == 0.01


def test_a_forgotten_await_in_post_processing_is_named() -> None:
    async def post_process_scores() -> list[float]:
        return [1.0]

    (reward,) = apply_post_process((SCORED,), post_process_scores())
    assert reward.kind == "user_error"
    assert "coroutine" in (reward.error or "")


def test_rewards_survive_pickling() -> None:
    rewards = parse_results([1.0, {"score": 0.5, "a": 1}, None], 3)
    assert pickle.loads(pickle.dumps(rewards[1])).extras == {"a": 1}


def test_post_process_cannot_revive_what_was_cancelled() -> None:
    (reward,) = apply_post_process([Reward(kind="cancelled", error="cancelled by the caller")], [0.5])
    assert reward.value is None
