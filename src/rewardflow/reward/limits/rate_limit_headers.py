"""Reads the headers in which a service announces its limits: Retry-After and the x-ratelimit-* family.

Always true: these functions never raise, whatever a service sent. They return None or a finite number between fixed
bounds. A header that is missing, malformed, beyond its bounds or of unknown meaning reads as None, so a strange proxy
can neither slow calls down nor break them. The bounds are in `plausible_numbers`.
"""

from __future__ import annotations

import datetime
import email.utils
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from rewardflow.reward.limits.plausible_numbers import RPM, TPM, WAIT_S, Bounds

# The spellings of two vendors; most other vendors copy the first.
_REQUESTS = ("x-ratelimit-limit-requests", "anthropic-ratelimit-requests-limit")
_TOKENS = ("x-ratelimit-limit-tokens", "anthropic-ratelimit-tokens-limit")
_RESET = {
    "x-ratelimit-limit-requests": "x-ratelimit-reset-requests",
    "x-ratelimit-limit-tokens": "x-ratelimit-reset-tokens",
}

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")
_UNIT_S = (86_400.0, 3_600.0, 60.0, 1.0, 0.001)
# A limit per minute resets within a minute; the extra second is for services that round up.
_LONGEST_RESET_S = 61.0


@dataclass(frozen=True, slots=True)
class HeaderLimits:
    """Limits per minute that a response announced; None where it announced none."""

    rpm: float | None
    tpm: float | None


def read_limits(headers: Mapping[str, str]) -> HeaderLimits:
    """Returns the announced limits per minute.

    The headers do not name their period. A reset further away than a minute means a daily limit; that says nothing
    about the pace and reads as None.
    """
    lowered = {name.lower(): value for name, value in headers.items()}
    return HeaderLimits(rpm=_limit_per_minute(lowered, _REQUESTS, RPM), tpm=_limit_per_minute(lowered, _TOKENS, TPM))


def read_retry_after_s(headers: Mapping[str, str], unix_now_s: float | None = None) -> float | None:
    """Returns how long the service asks us to wait: `retry-after-ms`, or `Retry-After` in seconds or as an HTTP date.

    A date is a moment on the service's clock. Without `unix_now_s` it is compared with the response's own `Date`, which
    avoids clock skew, or else with this machine's clock. A wait of more than a day reads as None.
    """
    lowered = {name.lower(): value for name, value in headers.items()}
    milliseconds = _number(lowered.get("retry-after-ms"))
    if milliseconds is not None:
        return WAIT_S.read(milliseconds / 1000.0, "retry-after-ms (in seconds)")
    value = lowered.get("retry-after")
    seconds = _number(value)
    if value is None:
        return None
    if seconds is not None:
        return WAIT_S.read(seconds, "Retry-After")
    until_unix_s = _unix_s(value)
    if until_unix_s is None:
        return None
    if unix_now_s is None:
        unix_now_s = _unix_s(lowered.get("date", ""))
    wait_s = until_unix_s - (time.time() if unix_now_s is None else unix_now_s)
    return WAIT_S.read(max(0.0, wait_s), "Retry-After")


def read_duration_s(text: str) -> float | None:
    """Returns the seconds of a duration as vendors write it: `12`, `1.5s`, `6m0s`, `20ms`, `1h2m3s`."""
    plain = _number(text)
    if plain is not None:
        return plain
    match = _DURATION.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        return None
    seconds = sum(float(part) * unit_s for part, unit_s in zip(match.groups(), _UNIT_S, strict=True) if part)
    return seconds if math.isfinite(seconds) else None


def _limit_per_minute(lowered: Mapping[str, str], names: tuple[str, ...], bounds: Bounds) -> float | None:
    for name in names:
        announced = _number(lowered.get(name))
        limit = bounds.read(announced, name) if announced else None  # 0 means that there is no limit
        if limit is None:
            continue
        reset_s = read_duration_s(lowered.get(_RESET.get(name, ""), ""))
        return None if reset_s is not None and reset_s > _LONGEST_RESET_S else limit
    return None


def _number(text: str | None) -> float | None:
    """Returns a finite number of at least 0, or None."""
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _unix_s(http_date: str) -> float | None:
    try:
        moment = email.utils.parsedate_to_datetime(http_date)
        if moment.tzinfo is None:  # HTTP dates are UTC, whatever the suffix
            moment = moment.replace(tzinfo=datetime.UTC)
        return moment.timestamp()
    except (ValueError, OverflowError, IndexError, TypeError):  # the standard library raises all of these
        return None
