"""Says what a count of accepted and refused calls tells about a service's rate.

Always true: every answer depends only on the counted calls, never on the state of the pace.

A service that refuses a call has no allowance left. So between two refused calls it accepted exactly what its rate
allowed: accepted / elapsed is the rate, for any burst and any way of sending, as long as we sent faster than it. A call
that was sent and not refused counts as accepted.

The count fails for a service without an allowance to save up (a burst of one). Asked a little too fast, it refuses
every second call, and the count comes out up to twice too low: then it is doubtful. It is also too low if a Retry-After
stopped all sending meanwhile.
"""

from __future__ import annotations

import math

from rewardflow.reward.limits.learning.chance_refusals import MOST_SHARE
from rewardflow.reward.limits.learning.refusals import Refusals

ENOUGH_ACCEPTED = 20  # accepted calls between refusals that make a count usable: 5 % exact
_GOOD_ACCEPTED = 100  # accepted calls that make a count good enough to hold at: 1 % exact
_LEAST_ELAPSED_S = 0.5  # over a shorter time, chance and the loop's own timing decide
_ENOUGH_ELAPSED_S = 10.0  # after this long, fewer accepted calls are enough: slow services
_ENOUGH_REFUSED = 8
_SURELY_REFUSED = 20  # this many refusals tell their share well
_DOUBTFUL_SHARE = 0.4  # if this share was refused, the count may be half of the rate
_DOUBTFUL_STOPS = 0.1  # if sending was stopped for this share of the time, the count may be lower still
_MANY_REFUSED = 6  # this many refusals, and this share of the calls: halve the rate without waiting for a count
_MOSTLY_REFUSED = 0.6
_MANY_FIRST_REFUSED = 10  # of the first calls, if others between them were accepted: chance makes clusters too


def counted_rate(refusals: Refusals) -> float:
    """Returns the calls per second that the service accepted between its refusals."""
    return refusals.num_accepted / refusals.elapsed_s


def is_usable(refusals: Refusals) -> bool:
    """Whether a count says enough to act on."""
    is_slow = refusals.elapsed_s >= _ENOUGH_ELAPSED_S and refusals.num_refused >= _ENOUGH_REFUSED
    is_enough = refusals.num_accepted >= ENOUGH_ACCEPTED or is_slow or refusals.stopped_s > 0.0
    return refusals.elapsed_s >= _LEAST_ELAPSED_S and is_enough


def is_good(refusals: Refusals) -> bool:
    """Whether a count is exact enough to hold a rate at it."""
    return refusals.num_accepted >= _GOOD_ACCEPTED


def is_doubtful(refusals: Refusals) -> bool:
    """Whether so many calls were refused that the count may be half of the rate."""
    return refusals.num_refused >= _DOUBTFUL_SHARE * (refusals.num_refused + refusals.num_accepted)


def is_cut_by_stops(refusals: Refusals) -> bool:
    """Whether a Retry-After stopped sending for so long that the count says little."""
    return refusals.stopped_s > _DOUBTFUL_STOPS * refusals.elapsed_s


def accepts_nothing(refusals: Refusals) -> bool:
    return refusals.num_accepted == 0 and refusals.num_refused >= _ENOUGH_REFUSED


def shows_no_burst(refusals: Refusals) -> bool:
    """Whether so large a share was refused as only a service without a burst refuses right above its limit."""
    return refusals.num_refused >= _MANY_REFUSED and refusals.share >= _DOUBTFUL_SHARE


def needs_search(refusals: Refusals) -> bool:
    """Whether a service without a known limit refuses so much that its rate must be far lower."""
    share = refusals.share
    is_all = refusals.num_refused >= _MANY_REFUSED and refusals.num_accepted == 0
    is_mostly = refusals.num_refused >= _MANY_FIRST_REFUSED and share >= _MOSTLY_REFUSED
    is_surely = refusals.num_refused >= _SURELY_REFUSED and share >= MOST_SHARE
    return refusals.stopped_s > 0.0 or is_all or is_mostly or is_surely


def shows_first_limit(refusals: Refusals) -> bool:
    """Whether a service without a known limit refuses few calls, but enough of them to count its rate."""
    is_enough = refusals.num_refused >= _ENOUGH_REFUSED and refusals.num_accepted >= ENOUGH_ACCEPTED
    return is_enough and refusals.elapsed_s >= _LEAST_ELAPSED_S and refusals.share < MOST_SHARE


class MostlyRefused:
    """Watches whether most calls are refused, long before a count is usable.

    Far more than half refused means that we send at more than twice the service's rate. The share is taken since the
    first refusal, because allowance may have been saved up before.
    """

    def __init__(self) -> None:
        self.restart(0)

    def restart(self, index: int) -> None:
        """Forgets the refusals so far and watches from call `index` on."""
        self._from_index = index
        self._num_refused = 0
        self._first = math.inf
        self._last = -math.inf

    def refused(self, index: int) -> bool:
        """Records that call `index` was refused; returns whether most calls are refused."""
        if index < self._from_index:
            return False
        self._num_refused += 1
        self._first = min(self._first, index)
        self._last = max(self._last, index)
        num_sent = self._last - self._first + 1
        return self._num_refused >= max(_MANY_REFUSED, _MOSTLY_REFUSED * num_sent)
