from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.reward.limits.rate_limit_headers import HeaderLimits, read_duration_s, read_limits, read_retry_after_s

NOON_UNIX_S = 1_760_000_400.0  # Thu, 09 Oct 2025 09:00:00 GMT


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        ("0.25", 0.25),
        ("Thu, 09 Oct 2025 09:00:30 GMT", 30.0),
        ("Thursday, 09-Oct-25 09:00:30 GMT", 30.0),
        ("Thu, 09 Oct 2025 08:00:00 GMT", 0.0),
    ],
)
def test_retry_after_is_read_as_seconds_or_as_a_date(value: str, seconds: float) -> None:
    assert read_retry_after_s({"Retry-After": value}, NOON_UNIX_S) == seconds


@pytest.mark.parametrize("value", ["", "soon", "-3", "nan", "inf", "Thu, 99 Oct 2025 09:00:30 GMT"])
def test_a_retry_after_that_makes_no_sense_is_none(value: str) -> None:
    assert read_retry_after_s({"retry-after": value}, NOON_UNIX_S) is None


def test_no_retry_after_is_none() -> None:
    assert read_retry_after_s({}, NOON_UNIX_S) is None


def test_milliseconds_are_more_exact_and_go_first() -> None:
    assert read_retry_after_s({"retry-after-ms": "1250", "retry-after": "2"}, NOON_UNIX_S) == 1.25


def test_without_a_clock_a_date_is_compared_with_the_responses_own() -> None:
    headers = {"Date": "Thu, 09 Oct 2025 09:00:00 GMT", "Retry-After": "Thu, 09 Oct 2025 09:00:12 GMT"}
    assert read_retry_after_s(headers) == 12.0


def test_both_vendors_limits_are_read_whatever_their_case() -> None:
    openai = {"X-RateLimit-Limit-Requests": "600", "x-ratelimit-limit-tokens": "150000"}
    anthropic = {"anthropic-ratelimit-requests-limit": "50", "anthropic-ratelimit-tokens-limit": "40000"}
    assert read_limits(openai) == HeaderLimits(rpm=600.0, tpm=150_000.0)
    assert read_limits(anthropic) == HeaderLimits(rpm=50.0, tpm=40_000.0)
    assert read_limits({"content-type": "text/html"}) == HeaderLimits(rpm=None, tpm=None)


def test_a_limit_that_takes_longer_than_a_minute_to_reset_is_not_per_minute() -> None:
    assert read_limits({"x-ratelimit-limit-requests": "200", "x-ratelimit-reset-requests": "7m12s"}).rpm is None
    assert read_limits({"x-ratelimit-limit-requests": "200", "x-ratelimit-reset-requests": "300ms"}).rpm == 200.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("12", 12.0), ("1.5s", 1.5), ("20ms", 0.02), ("6m0s", 360.0), ("1h2m3s", 3723.0), ("1d", 86_400.0), ("m", None)],
)
def test_durations_are_read_as_vendors_write_them(text: str, seconds: float | None) -> None:
    assert read_duration_s(text) == seconds


@given(st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms", "x-ratelimit-limit-requests"]), st.text()))
def test_nothing_that_a_service_sends_raises(headers: dict[str, str]) -> None:
    wait_s = read_retry_after_s(headers, NOON_UNIX_S)
    assert wait_s is None or wait_s >= 0
    rpm = read_limits(headers).rpm
    assert rpm is None or rpm > 0
