"""Latency distributions, parsed from the text that a user writes on a command line.

Always true: a distribution is a quantile function: it maps a number in [0, 1) to seconds and never decreases. It draws
no random numbers itself, so the caller decides what a latency depends on.

    constant:2              always 2 s
    uniform:1,40            between 1 and 40 s
    lognormal:5,1           median 5 s, sigma 1: one in six is above 13.6 s, one in forty above 37 s
    exponential:5           mean 5 s
    quantiles:0=1,50=4,99=30   half within 4 s, 99 % within 30 s; linear in between, none below 1 or above 30 s
    bimodal:1,30,0.1        medians 1 and 30 s, a tenth of the calls slow; each mode is lognormal with sigma 0.25
    bimodal                 the same
    journal:run.db          the latencies of the calls in a journal
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from os import PathLike
from statistics import NormalDist
from typing import Final

from rewardflow.errors import InvalidInput
from rewardflow.reward.journal.reader import JournalReader

Latency = Callable[[float], float]

# The delays of the original experiment, which drew them evenly; the demo and the benchmarks scale them.
SHORTEST_S: Final = 1.0
LONGEST_S: Final = 40.0
MEAN_S: Final = (SHORTEST_S + LONGEST_S) / 2

_MODE_SIGMA: Final = 0.25
_MARGIN: Final = 1e-6  # keeps away from 0 and 1, where the normal and exponential distributions are infinite
_NUM_QUANTILES: Final = 1001
_FORMS: Final = (
    "constant:S, uniform:LOW,HIGH, lognormal:MEDIAN,SIGMA, exponential:MEAN, bimodal[:FAST,SLOW,SLOW_SHARE], "
    "quantiles:PERCENT=S,... or journal:PATH"
)
_TEXTUAL: Final = ("journal", "quantiles")  # forms whose argument is not a list of numbers
_BIMODAL: Final = "bimodal:1,30,0.1"


def parse_latency(text: str) -> Latency:
    """Returns the distribution that the text names; raises `InvalidInput` if the text breaks a rule."""
    kind, _, rest = (_BIMODAL if text == "bimodal" else text).partition(":")
    match kind, None if kind in _TEXTUAL else _numbers(text, rest):
        case "journal", None if rest:
            return from_journal(rest)
        case "quantiles", None if rest:
            return _quantiles(text, rest)
        case "exponential", (mean,):
            return lambda quantile: -mean * math.log(1 - min(quantile, 1 - _MARGIN))
        case "constant", (seconds,):
            return lambda _: seconds
        case "uniform", (low, high):
            _require(low <= high, "of uniform:LOW,HIGH LOW must be at most HIGH", text)
            return lambda quantile: low + quantile * (high - low)
        case "lognormal", (median, sigma):
            return _lognormal(median, sigma)
        case "bimodal", (fast, slow, slow_share):
            _require(fast <= slow, "of bimodal:FAST,SLOW,SLOW_SHARE FAST must be at most SLOW", text)
            _require(0 < slow_share < 1, "of bimodal:FAST,SLOW,SLOW_SHARE the share must lie in (0, 1)", text)
            return _bimodal(fast, slow, slow_share)
    raise InvalidInput(f"latency must be {_FORMS}, got {text!r}")


def from_journal(path: str | PathLike[str]) -> Latency:
    return from_quantiles(journal_quantiles(path))


def journal_quantiles(path: str | PathLike[str]) -> list[float]:
    """Returns latency quantiles of the journal's calls with one attempt, because others include waits and retries.

    Uses all calls if none has one attempt.
    """
    with JournalReader(path) as reader:
        latencies = [(row.latency_s, row.attempts) for row in reader.rows(scored_only=True)]
    first_try = [latency_s for latency_s, attempts in latencies if attempts == 1]
    seconds = sorted(first_try or [latency_s for latency_s, _ in latencies])
    if not seconds:
        raise InvalidInput(f"a journal that gives the latency must hold scored verdicts, got none in {path}")
    return [interpolate(seconds, index / (_NUM_QUANTILES - 1)) for index in range(_NUM_QUANTILES)]


def from_quantiles(points: Sequence[float]) -> Latency:
    """Makes a distribution from evenly spaced quantiles, from the shortest to the longest."""
    return lambda quantile: interpolate(points, quantile)


def interpolate(ordered: Sequence[float], share: float) -> float:
    """Returns the value at this share of the ordered values, linear between two neighbours."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _lognormal(median: float, sigma: float) -> Latency:
    normal = NormalDist()
    return lambda quantile: median * math.exp(sigma * normal.inv_cdf(min(max(quantile, _MARGIN), 1 - _MARGIN)))


def _bimodal(fast: float, slow: float, slow_share: float) -> Latency:
    fast_mode, slow_mode = _lognormal(fast, _MODE_SIGMA), _lognormal(slow, _MODE_SIGMA)
    fast_share = 1 - slow_share

    def latency(quantile: float) -> float:
        if quantile < fast_share:
            return fast_mode(quantile / fast_share)
        return slow_mode((quantile - fast_share) / slow_share)

    return latency


def _quantiles(text: str, rest: str) -> Latency:
    pairs = [tuple(_numbers(text, part.replace("=", ",", 1))) for part in rest.split(",")]
    _require(all(len(pair) == 2 for pair in pairs), "of quantiles each must be PERCENT=SECONDS", text)
    shares, seconds = [pair[0] / 100 for pair in pairs], [pair[1] for pair in pairs]
    _require(
        shares == sorted(set(shares)) and shares[-1] <= 1, "of quantiles percents must go up, to 100 at most", text
    )
    _require(seconds == sorted(seconds), "of quantiles seconds must not go down", text)

    def latency(quantile: float) -> float:
        above = bisect.bisect_left(shares, quantile)
        if above in (0, len(shares)):
            return seconds[min(above, len(shares) - 1)]
        way = (quantile - shares[above - 1]) / (shares[above] - shares[above - 1])
        return seconds[above - 1] + way * (seconds[above] - seconds[above - 1])

    return latency


def _numbers(text: str, rest: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(part) for part in rest.split(","))
    except ValueError:
        raise InvalidInput(f"latency must be {_FORMS}, got {text!r}") from None
    _require(all(math.isfinite(number) and number >= 0 for number in numbers), "its numbers must be at least 0", text)
    return numbers


def _require(holds: bool, rule: str, text: str) -> None:
    if not holds:
        raise InvalidInput(f"latency: {rule}, got {text!r}")
