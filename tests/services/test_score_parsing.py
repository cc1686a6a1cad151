"""Numbers out of answers: the right ones, or an honest failure."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rewardflow as rf
from rewardflow.reward.code.current_call import Call, enter_call
from rewardflow.services.score_parsing import follow, priced_request, read_score

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(JSON, st.text(alphabet="ab.01-", max_size=8))
def test_no_path_into_any_answer_raises_anything_but_unparsable(answer: Any, path: str) -> None:
    with contextlib.suppress(rf.Unparsable):
        read_score(follow(answer, path))


def test_a_whole_number_beyond_a_double_is_no_score() -> None:
    with pytest.raises(rf.Unparsable):
        read_score(10**400)


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        ({"usage": {"total_tokens": 17}}, 17),
        ([{"meta_info": {"prompt_tokens": 9}}], 9),
        *(({"usage": usage}, 0) for usage in (None, {}, [], {"total_tokens": True}, {"total_tokens": -1})),
        *((odd, 0) for odd in (None, [], [1], "x")),
    ],
)
def test_tokens_are_reported_as_servers_tell_them_and_odd_ones_not(answer: Any, tokens: int) -> None:
    call = Call(rollouts=())
    enter_call(call)
    try:
        with priced_request(None) as report:
            report(answer)
        assert (call.tokens, call.is_cost_known, call.num_unpriced) == (tokens, False, 1)
        with priced_request(0.5) as report:
            report(answer)
        assert (call.cost_usd, call.is_cost_known, call.num_unpriced) == (0.5, True, 1)
    finally:
        enter_call(None)


def test_a_request_that_breaks_off_has_an_unknown_cost_and_one_that_was_refused_has_none() -> None:
    call = Call(rollouts=())
    enter_call(call)
    try:
        with pytest.raises(rf.ServiceError), priced_request(0.5):
            raise rf.ServiceError(status=503)
        assert call.num_unpriced == 0
        with pytest.raises(rf.ServiceError), priced_request(0.5):
            raise rf.ServiceError(status=500)
        assert call.num_unpriced == 1
    finally:
        enter_call(None)
