"""Says whether a limit is soft, so that sending much faster than it accepts is worth a try.

Always true: a service that says Retry-After, or accepts calls that come at once, is never pressed.

A limit without a burst is soft if calls arrive irregularly: two that arrive close together are one too many. It refuses
some calls at any rate, and without refusals it is hardly used. Where a refusal costs nothing, it is worth sending
faster (`pressing.py`). Three things must be true before: calls go on being refused at a rate that is held, no refusal
says Retry-After, and after a rest the service refuses some of a few calls that come at once. A service with a burst
accepts those, unless other clients have just used them up. It refuses calls at a rate that is held because others use
its limit too, and pressing it would only take their share. A limit without a burst that others use looks soft.
"""

from __future__ import annotations

import math

from rewardflow.reward.limits.learning.refusals import Refusals

_LEAST_CALLS = 200  # that were held at a rate, before their refusals are evidence
_LEAST_HOLDS = 2
_LEAST_COUNTED = 500  # without a rate that could be held
_SAME_RATE = 1.15  # rates that differ by less count as one
_MOST_CALLS = 1000  # older ones count less and less
_SOFT_SHARE = 0.01  # of held calls, refused: a hard limit refuses none of them
_LEAST_REFUSED = 3

_LEAST_BURST = 10  # calls at once
_BURST_S = 1.0  # or as many as are accepted in this time, far longer than a network may spread them
_NO_BURST_SHARE = 0.4  # of calls at once, refused: other clients may have used some of a burst meanwhile

_FIRST_WAIT_S = 600.0  # until a limit that was pressed in vain is pressed again
_FIRST_WAIT_CALLS = 2000  # accepted ones, if they take longer
_LONGEST_WAIT_S = 7200.0


def burst_size(accepted: float) -> int:
    """Returns how many calls at once show whether a service that accepts so many a second has a burst."""
    return max(_LEAST_BURST, math.ceil(_BURST_S * accepted))


def refuses_bursts(burst: Refusals) -> bool:
    """Whether a service that could have saved up allowance refused calls that came at once."""
    return burst.num_heard >= _NO_BURST_SHARE * burst.num_sent


class SoftLimitEvidence:
    """The calls that were refused at a rate that was held, and when pressing the limit is worth a try."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._num_holds = 0
        self._num_counted = 0
        self._counted: tuple[Refusals | None, int] = None, 0  # the calls that were counted last
        self._num_calls = self._num_refused = 0.0
        self._not_before = 0.0
        self._wait_s = _FIRST_WAIT_S
        self._says_retry_after = False

    def held(self, refusals: Refusals, rate: float) -> None:
        """Counts calls at a rate that was held; those at another rate no longer count."""
        if not 1.0 / _SAME_RATE < rate / (self._rate or rate) < _SAME_RATE:
            self._num_holds, self._num_calls, self._num_refused = 0, 0.0, 0.0
        self._rate = rate
        self._num_counted = 0
        self._num_holds += 1
        self._num_calls += refusals.num_sent
        self._num_refused += refusals.num_heard
        if self._num_calls > _MOST_CALLS:
            self._num_refused *= _MOST_CALLS / self._num_calls
            self._num_calls = _MOST_CALLS

    def counted(self, refusals: Refusals) -> None:
        """Counts calls that were refused before their rate was measured well; a hard limit soon lets it be held."""
        num_counted = refusals.num_refused + refusals.num_accepted
        before = self._counted[1] if self._counted[0] is refusals else 0
        self._num_counted += max(0, num_counted - before)
        self._counted = refusals, num_counted

    def stopped(self) -> None:
        """Records a Retry-After: refusals are dear."""
        self._says_retry_after = True

    def is_soft(self, now: float, *, is_surely_limit: bool) -> bool:
        """Whether more held calls were refused than a hard limit refuses, and a try is due.

        `is_surely_limit` says that a lower rate was tried, where refusals stopped. Otherwise the rate must have been
        held before: one that was found too low by accident would make any other one look better.
        """
        if self._says_retry_after or now < self._not_before:
            return False
        if self._num_counted >= _LEAST_COUNTED:
            return True
        if self._num_calls < _LEAST_CALLS:
            return False
        is_settled = is_surely_limit or self._num_holds >= _LEAST_HOLDS
        return is_settled and self._num_refused >= max(_LEAST_REFUSED, _SOFT_SHARE * self._num_calls)

    def pressed(self, now: float, accepted: float, *, in_vain: bool) -> None:
        """Records the end of a press, and the calls per second that the service accepted before."""
        self._num_holds, self._num_counted, self._num_calls, self._num_refused = 0, 0, 0.0, 0.0
        if in_vain:
            self._not_before = now + max(self._wait_s, _FIRST_WAIT_CALLS / accepted)
            self._wait_s = min(2.0 * self._wait_s, _LONGEST_WAIT_S)
        else:
            self._wait_s = _FIRST_WAIT_S
