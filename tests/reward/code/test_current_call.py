"""Reward code reports what a call cost with one line, wherever it runs; outside a call the line does nothing."""

from __future__ import annotations

import contextvars

import pytest

import rewardflow as rf
from rewardflow.reward.code.current_call import Call, drop_odd_usage, enter_call


def inside(call: Call, action) -> None:
    context = contextvars.copy_context()
    context.run(enter_call, call)
    context.run(action)


def test_outside_a_call_reporting_does_nothing() -> None:
    assert rf.current_call() is None
    rf.report_usage(cost_usd=1.0, tokens=5)
    rf.report_headers({"x-ratelimit-limit-requests": "600"})


def test_usage_adds_up_within_a_call() -> None:
    call = Call(())
    inside(call, lambda: (rf.report_usage(cost_usd=0.25), rf.report_usage(cost_usd=0.5, tokens=812)))
    assert (call.cost_usd, call.tokens) == (0.75, 812)


@pytest.mark.parametrize(
    "usage",
    [*({"cost_usd": odd} for odd in (-1.0, float("nan"), float("inf"), 1e300)), {"tokens": -1}, {"tokens": 10**13}],
)
def test_impossible_usage_is_refused(usage: dict[str, float]) -> None:
    with pytest.raises(rf.InvalidInput, match="usage must not be negative, and at most"):
        rf.report_usage(**usage)


def test_cached_tokens_are_a_part_of_the_tokens() -> None:
    call = Call(())
    inside(call, lambda: rf.report_usage(tokens=812, cached_tokens=700, cache_saved_usd=0.25))
    assert (call.cached_tokens, call.cache_saved_usd) == (700, 0.25)
    for cached_tokens, saved_usd in ((813, 0.0), (-1, 0.0), (1, -0.5), (1, float("inf"))):
        with pytest.raises(rf.InvalidInput, match="cached_tokens must be at most tokens"):
            rf.report_usage(tokens=812, cached_tokens=cached_tokens, cache_saved_usd=saved_usd)


def test_only_headers_about_limits_are_kept() -> None:
    call = Call(())
    headers = {"Authorization": "Bearer secret", "X-RateLimit-Limit-Requests": "600", "Retry-After": "7"}
    inside(call, lambda: rf.report_headers(headers))
    assert call.headers == {"x-ratelimit-limit-requests": "600", "retry-after": "7"}


def test_saying_that_a_call_cost_nothing_is_not_the_same_as_saying_nothing() -> None:
    told, silent = Call(()), Call(())
    inside(told, lambda: rf.report_usage(cost_usd=0.0))
    inside(silent, lambda: rf.report_usage(tokens=5))
    assert (told.is_cost_known, silent.is_cost_known) == (True, False)


@pytest.mark.parametrize("tokens", [10**400, -1, 1e9, "many", None])
def test_a_count_of_tokens_that_no_call_can_use_is_unknown(tokens: object) -> None:
    call = Call((), cost_usd=0.5, is_cost_known=True)
    call.tokens = tokens  # type: ignore[assignment]
    call.cached_tokens = 7
    drop_odd_usage(call)
    assert (call.tokens, call.cached_tokens, call.cost_usd, call.num_unpriced) == (0, 0, 0.5, 0)


@pytest.mark.parametrize("cost_usd", [float("nan"), float("inf"), -1.0, 10**400, "free", None])
def test_a_cost_that_no_call_can_have_is_unknown_and_not_free(cost_usd: object) -> None:
    call = Call((), is_cost_known=True)
    call.cost_usd = cost_usd  # type: ignore[assignment]
    drop_odd_usage(call)
    assert (call.cost_usd, call.is_cost_known, call.num_unpriced) == (0.0, False, 1)
