"""Finds out which share of a service's 429s must be put up with: those by chance, and those of a soft limit.

Always true: refusals count as chance only as long as their share stays near the one that was measured at a much lower
rate, where a limit refuses nothing; a limit counts as soft only as long as it refuses calls at the rate that is held.

A service that refuses one call in twenty whatever the rate looks at first like one with a limit. Slowing down is no
remedy there, and each further refusal would slow the pace down again. So when refusals go on right after the rate was
lowered, a test follows: calls at 70 % of the rate that was accepted. If the refusals go on there too, they are chance.

If they stop there, the limit is soft: it refuses fewer calls at a lower rate, but some at any. A limit with little or
no burst is soft if calls arrive irregularly, because two that arrive close together are one too many. Each step down
then loses more accepted calls than it saves refused ones, so up to a fifth of the calls may be refused.
"""

from __future__ import annotations

from rewardflow.reward.limits.refusals import Refusals

TEST_RATE = 0.7  # of the accepted rate: far enough below a limit that it refuses nothing
_TEST_REFUSALS = 8  # expected in a test if they are chance
_ENOUGH_TO_CONFIRM = 4
_RARE = 3  # this many refusals, and this share of the accepted calls, may always be chance
_RARE_SHARE = 0.02
_MARGIN = 1.6  # by which the share of chance refusals may be exceeded
_LEAST_SHARE = 0.005
_SOFT_SHARE = 0.2  # of calls that a soft limit may refuse, as a share of the accepted ones
_HARD_SHARE = 0.012  # if fewer calls are refused at the rate that is held, the limit is not soft
_ENOUGH_TO_TELL = 100  # calls
MOST_SHARE = 0.4  # a larger share is a limit, or no service to work with


class ChanceRefusals:
    """The share of calls that the service refuses by chance, and the test that measures it."""

    def __init__(self) -> None:
        self.share = 0.0
        self._is_limit_soft = False
        self._test: Refusals | None = None
        self._num_calls = 0
        self._num_refused = 0
        self._expected_share = 0.0

    @property
    def is_expected(self) -> bool:
        """Whether some refusals are put up with at any rate."""
        return self.share > 0.0 or self._is_limit_soft

    def explains(self, refusals: Refusals) -> bool:
        """Whether refusals are so rare that they need no lower rate. A Retry-After always does."""
        by_chance = _MARGIN * self.share / (1.0 - self.share)
        share = _RARE_SHARE + max(by_chance, _SOFT_SHARE if self._is_limit_soft else 0.0)
        return refusals.num_refused < _RARE + share * refusals.num_accepted and refusals.stopped_s == 0.0

    def begin_test(self, refusals: Refusals, share: float) -> None:
        """Begins a test with the calls of `refusals`; `share` was refused before."""
        self._test = refusals
        self._expected_share = share
        self._num_calls = round(_TEST_REFUSALS / share)
        self._num_refused = 0

    def refused(self, refusals: Refusals, index: int) -> bool:
        """Counts a refusal; returns whether the test has shown that refusals are chance."""
        if refusals is not self._test or index > self._num_calls:
            return False
        self._num_refused += 1
        if self._num_refused < _ENOUGH_TO_CONFIRM:
            return False
        self._test = None
        self.share = min(max(self._expected_share, self.share), MOST_SHARE)
        return True

    def goes_on(self, refusals: Refusals, share: float) -> bool:
        """Whether about the same share was refused before the rate was lowered and after; then refusals are chance."""
        seen = refusals.num_heard / max(1, refusals.num_sent)
        if refusals.num_heard < _ENOUGH_TO_CONFIRM or seen < share / 2.0:
            return False
        self.share = min(max(seen, self.share), MOST_SHARE)
        return True

    def is_over(self, refusals: Refusals) -> bool:
        """Whether all calls of the test were sent."""
        return refusals is self._test and refusals.num_sent >= self._num_calls

    def end_test(self) -> None:
        """Ends a test in which refusals stopped: the limit is soft until a rate that is held shows otherwise."""
        self._test = None
        self._is_limit_soft = True

    def measure(self, refusals: Refusals) -> None:
        """Lowers the share if fewer calls were refused than it says; so few may show that the limit is not soft."""
        if refusals.num_sent >= _ENOUGH_TO_TELL and refusals.num_heard <= _HARD_SHARE * refusals.num_sent:
            self._is_limit_soft = False
        if self.share > 0.0 and refusals.num_sent * self.share >= _TEST_REFUSALS:
            seen = refusals.num_heard / refusals.num_sent
            self.share = min(self.share, seen) if seen >= _LEAST_SHARE else 0.0
