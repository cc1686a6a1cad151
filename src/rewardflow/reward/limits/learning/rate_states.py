"""Holds the rate at which calls are sent, and the state that says what this rate is for.

Always true: the rate is None exactly while the state is "free", and positive in every other state; `history` says why
the rate changed, for the last 64 changes.

    free -> searching -> listening -> sweeping -> listening -> climbing -> holding -> sweeping ...
                                                                           holding -> bursting -> listening -> pressing

free: no limit is known.
searching: the rate doubles every two seconds.
sweeping: the rate grows with every call (`rate_probes.py`).
listening: the rate goes back to the one before, until refusals of the calls that were sent too fast must have arrived.
climbing: the rate is above the best estimate and grows every few seconds, but not far while the service may have saved
    up allowance. This spends the allowance and finds a raised limit. A refusal begins a count.
holding: the rate stays just below a measured one, for 55 s and 200 calls, and longer if refusals arrive slowly or stop
    all sending for long. Refusals so rare that they may be chance change nothing.
testing: refusals went on after the rate was lowered, so calls at 70 % of it show whether they are chance
    (`chance_refusals.py`).
bursting: after a rest, some calls start at once and show whether the service has a burst.
pressing: the rate is far above a soft limit, where it gets most calls accepted (`pressing.py`).

Idle time does not count: only calls sent as fast as the rate allowed make a state go on to the next.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Literal

from rewardflow.reward.limits.learning.chance_refusals import TEST_RATE
from rewardflow.reward.limits.learning.counted_rate import MostlyRefused
from rewardflow.reward.limits.learning.rate_probes import LEAST_EXCESS, RateClimb, RateSweep, SavedAllowance
from rewardflow.reward.limits.learning.refusals import Refusals

RateState = Literal[
    "free", "searching", "listening", "sweeping", "climbing", "holding", "testing", "bursting", "pressing"
]

FIRST_RATE = 1.0  # calls per second at the start of a search
LEAST_RATE = 1 / 30  # calls per second, the least while everything is refused
_SEARCH_DOUBLING_S = 2.0
_SEARCH_CALLS = 3  # the least number of calls before the rate doubles
_SEARCH_DOUBLINGS = 6
_LISTEN_ECHOES = 1.25
_ECHO_WEIGHT = 0.01  # of each refusal in the mean; a slower refusal replaces the mean at once

HOLD_SHARE = 0.97
_HOLD_S = 55.0  # a limit that was raised is found soon after; holding for longer would save few refusals
_HOLD_ECHOES = 15.0  # if refusals take long to arrive, a climb costs many of them: hold for longer
_LONGEST_HOLD_S = 300.0
_LEAST_HOLD_CALLS = 200  # each new measurement costs a few refusals

_AT_ONCE = 1000.0  # calls per second: a burst
_EVEN_SHARE = 0.9  # of calls that the rate delayed: slots and the caller hardly did

_HISTORY = 64
_NEWS = 0.01  # the history leaves out smaller changes of the rate


class RateStates:
    """The state, the rate in calls per second (None while no limit is known), and the measurement of its calls."""

    def __init__(self) -> None:
        self.state: RateState = "free"
        self.rate: float | None = None
        self.current = Refusals()  # of calls sent since the rate was last chosen
        self.previous = Refusals()
        self.history: deque[tuple[float, float, str]] = deque(maxlen=_HISTORY)
        self.echo_s = 0.0  # how long a refusal takes to arrive
        self.base = 0.0  # the best estimate: sweeps and climbs start from it
        self.known: float | None = None
        self.hold_s = _HOLD_S
        self.saved = SavedAllowance()
        self.quiet_rate = 0.0  # the last rate of a climb or a hold at which refusals were at most chance
        self.sweep: RateSweep | None = None
        self._climb = RateClimb(0.0)
        self._quiet_s = 0.0  # time spent sending at full rate without a refusal
        self._quiet_calls = 0  # calls sent in that time
        self._num_even = 0  # calls of the current measurement that the rate delayed
        self._search_from = FIRST_RATE
        self._doublings = 0
        self._listen_until = math.inf
        self._mostly_refused = MostlyRefused()

    @property
    def listen_s(self) -> float:
        """How long to wait until refusals of the calls sent so far must have arrived."""
        return _LISTEN_ECHOES * self.echo_s

    def is_over(self, now: float) -> bool:
        """Whether it is time for the next rate: after long enough without a refusal, or at the end of listening."""
        if self.state == "holding":
            return self._quiet_s >= self.hold_s and self._quiet_calls >= _LEAST_HOLD_CALLS
        if self.state == "climbing":
            return self._quiet_s >= self._climb.growth_after_s(self.base, self.echo_s)
        if self.state == "searching":
            return self._quiet_s >= _SEARCH_DOUBLING_S and self._quiet_calls >= _SEARCH_CALLS
        return self.state == "listening" and now >= self._listen_until

    def sent(self, now: float, spent_s: float) -> None:
        """Records that a call starts. `spent_s` is how long the rate delayed it, 0 if other reasons did."""
        self.saved.spend(now, self.base)
        if spent_s > 0.0:
            self._quiet_s += spent_s
            self._quiet_calls += 1
            self._num_even += 1

    def heard(self, latency_s: float) -> None:
        """Records how long a refusal took to arrive."""
        self.echo_s = max(latency_s, self.echo_s + _ECHO_WEIGHT * (latency_s - self.echo_s))

    def hush(self, now: float) -> None:
        """Resets the saved allowance: a service that refuses has none left.

        Calls sent before the refusal arrived prove nothing, so the quiet time restarts one echo later.
        """
        self.saved.reset(now)
        self._quiet_s = -self.echo_s
        self._quiet_calls = 0

    def end_quiet_time(self) -> None:
        """Restarts the quiet time. The service had allowance left: a count that has begun ends."""
        self._quiet_s = 0.0
        self._quiet_calls = 0
        if self.current.num_heard > 0:
            self.renew()

    @property
    def is_even(self) -> bool:
        """Whether the rate alone decided when the calls of this measurement were sent."""
        return self._num_even >= _EVEN_SHARE * self.current.num_sent

    def renew(self, previous: Refusals | None = None, *, is_trial: bool = False) -> None:
        """Starts a new measurement for the calls sent from now on; late refusals still count for `previous`."""
        self.previous = previous or self.current
        num_before = self.current.num_before + self.current.num_sent
        self.current = Refusals(is_trial=is_trial, num_before=num_before)
        self._quiet_s = 0.0
        self._quiet_calls = 0
        self._num_even = 0
        self._mostly_refused.restart(0)

    def free(self, now: float, reason: str) -> None:
        self.renew()
        self.state, self.rate = "free", None
        self.history.append((now, math.inf, f"free: {reason}"))

    def search(self, now: float, rate: float, reason: str) -> None:
        self.renew()
        self._search_from = rate
        self._doublings = 0
        self._choose(now, "searching", rate, reason)

    def search_on(self, now: float) -> None:
        """Doubles the rate; after several times it listens first, because refusals may be on their way."""
        assert self.rate is not None
        if self._doublings < _SEARCH_DOUBLINGS:
            self._doublings += 1
            self._choose(now, "searching", 2.0 * self.rate, "no refusals")
        else:
            self.listen(now, self._search_from)

    def search_higher(self, now: float) -> None:
        """Begins a new search near the end of the last one."""
        self.search(now, self._search_from * 2.0 ** (_SEARCH_DOUBLINGS - 1), "all accepted")

    def listen(self, now: float, rate: float) -> None:
        self.renew()
        self._listen_until = now + self.listen_s
        self._choose(now, "listening", rate, "for refusals on their way")

    def begin_sweep(self, now: float, base: float, span: float, num_calls: int, reason: str) -> None:
        """Sweeps from `base` to `span` times as much, in a measurement that has just begun."""
        self.sweep = RateSweep.plan(self.current, base, span, num_calls)
        self.base = base
        self._choose(now, "sweeping", base, reason)

    def sweep_on(self, now: float) -> None:
        assert self.rate is not None
        assert self.sweep is not None
        self.rate *= self.sweep.growth
        if self.sweep.is_over(self.rate):
            self.listen(now, HOLD_SHARE * self.base)

    def climb_after_sweep(self, now: float) -> None:
        self._quiet_s = 0.0
        self.climb(now, self.base, RateClimb.after_sweep(self.base, self.echo_s), "sweep accepted")

    def climb(self, now: float, base: float, climb: RateClimb, reason: str) -> None:
        self.base = base
        self._climb = climb
        self._choose(now, "climbing", climb.rate(base), reason)

    def climb_on(self, now: float) -> None:
        self.quiet_rate = self.rate or 0.0
        self.climb(now, self.base, self._climb.grown(self.saved), "no refusals")

    def hold(self, now: float, measured: float, refusals: Refusals, reason: str) -> None:
        """Holds just below the rate that `refusals` measured; late refusals may still refine it."""
        is_late = refusals is self.previous and self.state == "holding"
        if not is_late:
            self.hold_s = max(_HOLD_S, min(_HOLD_ECHOES * self.echo_s, _LONGEST_HOLD_S))
            self.renew(refusals)
        self.known = self.base = measured
        self._choose(now, "holding", HOLD_SHARE * measured, reason)

    def hold_announced(self, now: float, rate: float) -> None:
        self.renew()
        self.known = self.base = rate
        self.hold_s = math.inf  # every answer announces the rate again, so sweeping would find nothing
        self._choose(now, "holding", HOLD_SHARE * rate, "announced by the service")

    def test(self, now: float, base: float, refusals: Refusals) -> None:
        """Sends well below `base`, the rate that `refusals` measured."""
        self.base = base
        self.renew(refusals)
        self._choose(now, "testing", TEST_RATE * base, "whether refusals are chance")

    def rest(self, now: float, seconds: float) -> None:
        """Lets the service save up allowance: the next call starts after so long, and `burst` follows."""
        self.renew(is_trial=True)
        self._choose(now, "bursting", 1.0 / seconds, "whether calls at once are refused")

    def burst(self, now: float) -> None:
        self._choose(now, "bursting", _AT_ONCE, "calls at once")

    def press(self, now: float, rate: float) -> None:
        """Sends at this rate in a new measurement."""
        self.renew(is_trial=True)
        self._choose(now, "pressing", rate, "more are accepted")

    def halve_if_mostly_refused(self, index: int, now: float) -> bool:
        """Records that call `index` was refused; halves the rate if most calls are, and says whether it did.

        Then we send at more than twice the service's rate, so half of our rate is still fast enough to count at.
        """
        assert self.rate is not None
        if not self._mostly_refused.refused(index):
            return False
        self.hush(now)
        self._mostly_refused.restart(self.current.num_sent + 1)
        half = max(self.rate / 2.0, LEAST_RATE)
        if self.state in ("searching", "listening"):
            self._search_from = min(self._search_from, half)  # or the next listening would go back to a refused rate
            self._choose(now, self.state, half, "mostly refused")
        else:
            self.climb(now, half / (1.0 + LEAST_EXCESS), RateClimb(LEAST_EXCESS, step=1.0), "mostly refused")
        return True

    def _choose(self, now: float, state: RateState, rate: float, reason: str) -> None:
        is_news = self.rate is None or state != self.state or abs(rate / self.rate - 1.0) > _NEWS
        self.state = state
        self.rate = rate
        if is_news:
            self.history.append((now, 60.0 * rate, f"{state}: {reason}"))
