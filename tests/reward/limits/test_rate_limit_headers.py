from __future__ import annotations

import math

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


# -- absurd values --

ABSURD = [
    "1e308",
    "-1",
    "nan",
    "inf",
    "-inf",
    "1e-300",
    "0.0001",
    "9" * 400,
    "1e30d",
    "\u0661\u0662",
    "1_000",
    "0x10",
    "true",
    "",
]
NAMES = [
    *("x-ratelimit-limit-requests", "x-ratelimit-limit-tokens", "x-ratelimit-reset-requests"),
    *("x-ratelimit-reset-tokens", "anthropic-ratelimit-requests-limit", "anthropic-ratelimit-tokens-limit"),
    *("retry-after", "retry-after-ms", "date"),
]
VALUES = st.one_of(
    st.sampled_from([*ABSURD, "Thu, 09 Oct 9999 09:00:30 GMT", "Thu, 01 Jan 0001 00:00:00 +2359", "9" * 400 + "h"]),
    st.text(max_size=60),
    st.floats().map(str),
    st.integers().map(str),
    st.datetimes().map(lambda moment: moment.strftime("%a, %d %b %Y %H:%M:%S GMT")),
)


@given(st.dictionaries(st.sampled_from(NAMES), VALUES))
def test_any_text_in_any_header_gives_finite_bounded_numbers(headers: dict[str, str]) -> None:
    limits, wait_s = read_limits(headers), read_retry_after_s(headers, NOON_UNIX_S)
    assert limits.rpm is None or 1.0 <= limits.rpm <= 1e9
    assert limits.tpm is None or 100.0 <= limits.tpm <= 1e12
    assert wait_s is None or 0.0 <= wait_s <= 86_400.0
    for value in headers.values():
        seconds = read_duration_s(value)
        assert seconds is None or 0.0 <= seconds < math.inf


@pytest.mark.parametrize("value", ["315360000", "1e300", "Thu, 09 Oct 2035 09:00:00 GMT"])
def test_a_retry_after_of_more_than_a_day_is_none(value: str) -> None:
    assert read_retry_after_s({"Retry-After": value}, NOON_UNIX_S) is None
    assert read_retry_after_s({"Retry-After": "86400"}, NOON_UNIX_S) == 86_400.0


@pytest.mark.parametrize("value", ["1e308", "0.01", "-1", "0"])
def test_an_absurd_limit_is_none_and_the_next_header_counts(value: str) -> None:
    headers = {"x-ratelimit-limit-requests": value, "anthropic-ratelimit-requests-limit": "600"}
    assert read_limits(headers).rpm == 600.0
