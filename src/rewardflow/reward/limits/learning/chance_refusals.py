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

import math

from rewardflow.reward.limits.learning.refusals import Refusals

TEST_RATE = 0.7  # of the accepted rate: far enough below a limit that it refuses nothing
_LEAST_TESTED_SHARE = 0.03
_LIKELIER = 10.0  # how many times more refusals a test expects if they are chance than if they are not
_SURE = 5.5  # logarithm of the odds that end a test: three refusals and few other calls, or 12 / share others
_LONGEST_TEST_S = 60.0
_LEAST_TEST_CALLS = 40  # fewer tell too little about the share
_ENOUGH_TO_CONFIRM = 4
_RARE = 3  # this many refusals, and this share of the accepted calls, may always be chance
_RARE_SHARE = 0.02
_MARGIN = 1.6  # by which the share of chance refusals may be exceeded
_LEAST_SHARE = 0.005
_EARLY_END_CALLS = 10  # added to the calls of a test, which ends as soon as it has seen enough refusals
_MOST_GROWTH = 1.2  # of the share since the test: at a higher rate a limit may refuse calls too
_MOST_CALLS = 1000  # that the share is taken of; older calls count less and less
_SOFT_SHARE = 0.2  # of calls that a soft limit may refuse, as a share of the accepted ones
_HARD_SHARE = 0.012  # if fewer calls are refused at the rate that is held, the limit is not soft
_ENOUGH_TO_TELL = 100  # calls
MOST_SHARE = 0.4  # a larger share is a limit, or no service to work with


class ChanceTest:
    """Weighs whether refusals go on at a rate that is well below the accepted one.

    Always true: each refused call makes chance likelier and each other call makes it less likely, by as much as the
    odds of that outcome differ between `share` (halved, because a share that drew attention is often too high) and a
    tenth of it.
    """

    __slots__ = (
        "_by_accepted",
        "_by_refused",
        "_ends_at",
        "_last_index",
        "_listen_until",
        "_num_calls",
        "_num_refused",
        "refusals",
    )

    def __init__(self, refusals: Refusals, share: float, now: float) -> None:
        self.refusals = refusals
        self._num_refused = 0
        self._last_index = 0
        self._num_calls = 0
        self._listen_until = math.inf
        self._ends_at = now + _LONGEST_TEST_S
        by_chance = max(share / 2.0, _LEAST_TESTED_SHARE)
        otherwise = by_chance / _LIKELIER
        self._by_refused = math.log(by_chance / otherwise)
        self._by_accepted = math.log((1.0 - by_chance) / (1.0 - otherwise))

    def refused(self, index: int) -> bool:
        """Counts a refusal; returns whether refusals are surely chance."""
        self._num_refused += 1
        self._last_index = max(self._last_index, index)
        return self._last_index >= _LEAST_TEST_CALLS and self._evidence(self._last_index) >= _SURE

    def is_chance(self, now: float, listen_s: float) -> bool | None:
        """Returns what the test has shown after another call was sent, None while it goes on.

        Before it says that refusals stopped, it waits `listen_s` for those on their way.
        """
        num_sent = self.refusals.num_sent
        if now >= self._ends_at:
            return self._evidence(num_sent) > 0.0
        if num_sent >= _LEAST_TEST_CALLS and self._evidence(num_sent) >= _SURE:
            return True
        if self._listen_until == math.inf:
            if self._evidence(num_sent) <= -_SURE:
                self._num_calls, self._listen_until = num_sent, now + listen_s
        elif now >= self._listen_until:
            self._listen_until = math.inf
            if self._evidence(self._num_calls) <= -_SURE:
                return False
        return None

    def _evidence(self, num_calls: int) -> float:
        """Returns the logarithm of the odds that refusals are chance, after so many calls."""
        return self._by_refused * self._num_refused + self._by_accepted * (num_calls - self._num_refused)


class ChanceRefusals:
    """The share of calls that the service refuses by chance, and the test that measures it."""

    def __init__(self) -> None:
        self._num_calls = self._num_refused = 0.0  # that the share is taken of
        self._most_share = 0.0
        self._measured: tuple[Refusals, int, int] | None = None  # with the calls and refusals that are in the share
        self.is_limit_soft = False  # it refused calls at a rate that was held, and fewer at a lower one
        self._test: ChanceTest | None = None

    @property
    def share(self) -> float:
        share = self._num_refused / self._num_calls if self._num_calls > 0.0 else 0.0
        return min(share, self._most_share, MOST_SHARE) if share >= _LEAST_SHARE else 0.0

    @property
    def is_expected(self) -> bool:
        """Whether some refusals are put up with at any rate."""
        return self.is_limit_soft or self.share > 0.0

    def explains(self, refusals: Refusals) -> bool:
        """Whether refusals are so rare that they need no lower rate. A Retry-After always does."""
        by_chance = _MARGIN * self.share / (1.0 - self.share)
        share = _RARE_SHARE + max(by_chance, _SOFT_SHARE if self.is_limit_soft else 0.0)
        return refusals.num_refused < _RARE + share * refusals.num_accepted and refusals.stopped_s == 0.0

    def begin_test(self, refusals: Refusals, share: float, now: float) -> None:
        """Begins a test with the calls of `refusals`; `share` was refused before."""
        self._test = ChanceTest(refusals, share, now)

    def refused(self, refusals: Refusals, index: int) -> bool:
        """Counts a refusal; returns whether the test has shown that refusals are chance."""
        test = self._test
        return test is not None and refusals is test.refusals and test.refused(index)

    def test_shows_chance(self, now: float, listen_s: float) -> bool | None:
        """Returns what the test has shown, None while it goes on."""
        return None if self._test is None else self._test.is_chance(now, listen_s)

    def end_test(self, *, is_chance: bool) -> None:
        """Ends the test. If refusals stopped, the limit is soft until a rate that is held shows otherwise."""
        test, self._test = self._test, None
        if is_chance and test is not None:
            self._accept(test.refusals)
        elif not is_chance:
            self.is_limit_soft = True

    def forget_test(self) -> None:
        self._test = None

    def goes_on(self, refusals: Refusals, share: float) -> bool:
        """Whether about the same share was refused before the rate was lowered and after; then refusals are chance."""
        seen = refusals.num_heard / max(1, refusals.num_sent)
        if refusals.num_heard < _ENOUGH_TO_CONFIRM or seen < share / 2.0:
            return False
        self._accept(refusals)
        return True

    def measure(self, refusals: Refusals) -> None:
        """Takes calls at a rate that was kept into the share; so few refusals may show that the limit is not soft."""
        if refusals.num_sent >= _ENOUGH_TO_TELL and refusals.num_heard <= _HARD_SHARE * refusals.num_sent:
            self.is_limit_soft = False
        if self.share > 0.0:
            self._count(refusals)

    def _accept(self, refusals: Refusals) -> None:
        """Puts up with the share of `refusals`, calls at a lowered rate. A few refusals may have ended them early."""
        self._measured = (refusals, refusals.num_sent, refusals.num_heard)
        self._num_calls, self._num_refused = refusals.num_sent + _EARLY_END_CALLS, refusals.num_heard
        self._most_share = _MOST_GROWTH * self._num_refused / self._num_calls

    def _count(self, refusals: Refusals) -> None:
        before = self._measured if self._measured is not None and self._measured[0] is refusals else (refusals, 0, 0)
        self._measured = (refusals, refusals.num_sent, refusals.num_heard)
        self._num_calls += refusals.num_sent - before[1]
        self._num_refused += refusals.num_heard - before[2]
        if self._num_calls > _MOST_CALLS:
            self._num_refused *= _MOST_CALLS / self._num_calls
            self._num_calls = _MOST_CALLS
