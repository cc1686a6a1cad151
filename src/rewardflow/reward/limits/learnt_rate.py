"""Learns a service's rate from its 429s alone.

Always true: a 429 changes the rate only if it answers a call sent since the rate was last chosen; a late 429 only
refines the measurement that its call belongs to.

Two measurements find the rate. Both take a call that was sent and not refused as accepted.

By count: a service that refuses a call has no allowance left. So between two refused calls it accepted exactly what its
rate allowed: accepted / elapsed is the rate, for any burst and any way of sending, as long as we sent faster than it.

By sweep: the count fails for a service without an allowance to save up (a burst of one). Asked a little too fast, it
refuses every second call, and the count comes out up to twice too low. A sweep is a short run of calls that come faster
and faster; the rate of the last call before the first refusal is the service's rate. A service with a burst refuses few
calls of a sweep, or none.

A burst also hides the limit. Since its last refusal, the service may have saved up allowance that we did not use: while
we held a little below the rate, and in idle time. Until that allowance is spent, an accepted call proves nothing about
a higher limit.

    free -> searching -> listening -> sweeping -> listening -> climbing -> holding -> sweeping ...

free: no limit is known.
searching: the rate doubles every two seconds.
sweeping: as above.
listening: the rate goes back to the one before, until refusals of the calls that were sent too fast must have arrived.
climbing: the rate is above the best estimate and grows every few seconds, but not far while the service may have saved
    up allowance. This spends the allowance and finds a raised limit. A refusal begins a count.
holding: the rate stays just below a measured one, for 55 s and 200 calls, and longer if refusals arrive slowly or stop
    all sending for long. Refusals so rare that they may be chance change nothing.
testing: refusals went on after the rate was lowered, so calls at 70 % of it show whether they are chance
    (`chance_refusals.py`).

A Retry-After of many seconds makes refusals dear. Then the rate is narrowed down between bounds (`long_stops.py`).

Idle time does not count: only calls sent as fast as the rate allowed make a state go on to the next.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Literal

from rewardflow.reward.limits.chance_refusals import MOST_SHARE, TEST_RATE, ChanceRefusals
from rewardflow.reward.limits.long_stops import LongStops
from rewardflow.reward.limits.refusals import Refusals

RateState = Literal["free", "searching", "listening", "sweeping", "climbing", "holding", "testing"]

_FIRST_RATE = 1.0  # calls per second at the start of a search
_LEAST_RATE = 1 / 30  # calls per second, the least while everything is refused
_SEARCH_DOUBLING_S = 2.0
_SEARCH_CALLS = 3  # the least number of calls before the rate doubles
_SEARCH_DOUBLINGS = 6
_LISTEN_ECHOES = 1.25
_ECHO_WEIGHT = 0.01  # of each refusal in the mean; a slower refusal replaces the mean at once
_ROUNDING = 1e-6

_HOLD_SHARE = 0.97
_HOLD_S = 55.0  # a limit that was raised is found soon after; holding for longer would save few refusals
_HOLD_ECHOES = 15.0  # if refusals take long to arrive, a climb costs many of them: hold for longer
_LONGEST_HOLD_S = 300.0
_CLOSE_BOUNDS = 1.1  # bounds of the rate that are this close need no more trials
_CLOSE_TRIAL = 1.25  # a trial that is this close to the refused rate is held for long
_STOP_SHARE = 0.08  # of the time that stops by Retry-After may take: the rate is held longer for it
_LEAST_HOLD_CALLS = 200  # each new measurement costs a few refusals

_NARROW_SWEEP = 1.1  # the last rate by the first; a wider sweep would say little about a service with a small burst
_NARROW_SWEEP_CALLS = 12  # half of them may be refused before the first refusal arrives
_WIDE_SWEEP = 2.0  # the largest error of a count, as a factor
_WIDE_SWEEP_CALLS = 24

_LEAST_EXCESS = 0.01
_MOST_FIRST_EXCESS = 0.10
_CLIMB_REFUSALS = 10  # refusals in flight when the first one arrives, if a climb begins right above the limit
_CLIMB_DOUBLING_S = 8.0  # or the time of this many echoes or calls, if that is longer
_CLIMB_ECHOES = 2.5
_CLIMB_CALLS = 40
_CLIMB_CALLS_S = 120.0  # the longest time to wait for these calls, for slow services
_SPENDING_EXCESS = 0.4  # the most that a climb adds while the service may have allowance saved up
_MOST_SAVED_S = 60.0  # limits are per minute, so no service saves up more

_ENOUGH_ACCEPTED = 20  # accepted calls between refusals that make a count usable: 5 % exact
_GOOD_ACCEPTED = 100  # accepted calls that make a count good enough to hold at: 1 % exact
_LEAST_ELAPSED_S = 0.5  # over a shorter time, chance and the loop's own timing decide
_ENOUGH_ELAPSED_S = 10.0  # after this long, fewer accepted calls are enough: slow services
_ENOUGH_REFUSED = 8
_SURELY_REFUSED = 20  # this many refusals tell their share well
_DOUBTFUL_SHARE = 0.4  # if this share was refused, the count may be half of the rate
_DOUBTFUL_STOPS = 0.1  # if sending was stopped for this share of the time, the count may be lower still
_PLAUSIBLE_SHARE = 0.7  # of a proven rate; a count below this lost much of its time in stops
_LESS_PROVEN = 0.85  # factor for a proven rate, each time it is relied on and refused again
_FURTHEST_TRIAL = 1.25
_MANY_REFUSED = 6  # this many refusals, and this share of the calls: halve the rate without waiting for a count
_MOSTLY_REFUSED = 0.6
_LONGEST_TEST_S = 60.0
_HISTORY = 64
_NEWS = 0.01  # the history leaves out smaller changes of the rate


class LearntRate:
    """Learns how many calls per second a service accepts: `rate`, None while no limit is known."""

    def __init__(self) -> None:
        self.state: RateState = "free"
        self.rate: float | None = None
        self.current = Refusals()  # of calls sent since the rate was last chosen
        self.history: deque[tuple[float, float, str]] = deque(maxlen=_HISTORY)
        self._previous = Refusals()
        self._echo_s = 0.0  # how long a refusal takes to arrive
        self._quiet_s = 0.0  # time spent sending at full rate without a refusal
        self._quiet_calls = 0  # calls sent in that time
        self._search_from = _FIRST_RATE
        self._doublings = 0
        self._listen_until = math.inf
        self._sweep: Refusals | None = None
        self._sweep_growth = 1.0  # from call to call
        self._sweep_from = self._sweep_end = 0.0
        self._base = 0.0  # the best estimate: sweeps and climbs start from it
        self._saved = 0.0  # calls that the service may have saved up since it last refused one
        self._saved_at = 0.0
        self._excess = 0.0
        self._excess_step = 0.0
        self._known: float | None = None
        self._chance = ChanceRefusals()
        # The state and rate before refusals lowered the rate, and the share that was refused.
        self._lowered_from: tuple[RateState, float | None, float] | None = None
        self._test_until = self._test_ends_at = math.inf
        self._stops = LongStops()
        self._proven = 0.0  # the last rate at which nothing was refused for a while
        self._hold_s = _HOLD_S
        self._hint: float | None = None
        self._watched_from = 0
        self._num_watched = 0  # refusals from there on
        self._first_refused = math.inf
        self._last_refused = -math.inf

    def sent(self, now: float, spent_s: float) -> None:
        """Records that a call starts. `spent_s` is how long the rate delayed it, 0 if other reasons did."""
        self._spend(now)
        self._stops.num_sent += 1
        if spent_s > 0.0:
            self._quiet_s += spent_s
            self._quiet_calls += 1
        if self.state == "sweeping":
            if spent_s > 0.0:
                self._sweep_on(now)
        elif self.state == "holding":
            is_over = self._quiet_s >= self._hold_s and self._quiet_calls >= _LEAST_HOLD_CALLS
            if is_over and self._known is not None:
                if self._lowered_from is not None and self._chance.goes_on(self.current, self._lowered_from[2]):
                    self._go_back(now)
                    return
                self._prove()
                self._begin_sweep(now, self._known, _NARROW_SWEEP, _NARROW_SWEEP_CALLS, "held long enough")
        elif self.state == "climbing":
            if self._quiet_s >= self._climb_doubling_s():
                self._prove()
                self._climb_on(now)
        elif self.state == "searching":
            if self._quiet_s >= _SEARCH_DOUBLING_S and self._quiet_calls >= _SEARCH_CALLS:
                self._search_on(now)
        elif self.state == "listening" and now >= self._listen_until:
            self._end_listening(now)
        elif self.state == "testing":
            self._test_on(now)

    def refused(self, refusals: Refusals, sent_at: float, index: int, sent_rate: float, now: float) -> None:
        """Records a 429 for the call sent as number `index` of `refusals`, at `sent_rate`."""
        refusals.add(sent_at, index, sent_rate)
        latency_s = now - sent_at
        self._echo_s = max(latency_s, self._echo_s + _ECHO_WEIGHT * (latency_s - self._echo_s))
        refusals.settle(now - (1.0 - _ROUNDING) * self._echo_s)
        self._stops.refused_rate = sent_rate
        if now < self._stops.ends_at:  # the stop has already answered for the calls that were out
            return
        is_current = refusals is self.current
        if self._chance.refused(refusals, index):
            self._go_back(now)
            return
        may_be_chance = self.state in ("free", "holding", "testing") or self._chance.share > 0.0
        is_chance = may_be_chance and self._chance.explains(refusals)
        if is_current and not is_chance:
            self._hush(now)
        elif not is_current and (refusals is not self._previous or self.current.num_heard >= 2):
            return
        if self.state == "free":
            if not is_chance:
                self._leave_free(refusals, now)
        elif self.state == "testing":
            pass
        elif refusals is self._sweep:
            if self.state == "sweeping":  # refusals of slower calls may still be in flight
                self._listen(now, _HOLD_SHARE * self._base)
            elif self.state != "listening":
                self._hold(now, self._swept(refusals), refusals, "measured by sweep")
        elif not (is_current and self._halve_if_mostly_refused(index, now)) and not is_chance:
            self._judge(refusals, now)

    def stopped(self, stopped_s: float, now: float) -> None:
        """Records that a Retry-After stops all sending. Meanwhile the service may lose allowance it cannot save up."""
        if self.current.num_heard > 0:
            self.current.stopped_s += stopped_s
        at_least = self._stops.stopped(stopped_s, now)
        if now < self._stops.ends_at and self.state == "free":
            self._search(now, _FIRST_RATE, "refusals")
        elif at_least is not None:
            self._bound(now, at_least)

    def _bound(self, now: float, at_least: float) -> None:
        """Holds a rate between the bounds that a long stop told; for long if they are close, as each stop is dear."""
        refused = self._stops.refused_rate
        if self.state in ("climbing", "listening") and self._known is not None and self._known <= refused:
            at_least = max(at_least, self._known)
        trial = at_least if refused <= _CLOSE_BOUNDS * at_least else math.sqrt(at_least * refused)
        self._hold(now, trial, self.current, "between bounds")
        if refused <= _CLOSE_TRIAL * trial:
            self._hold_s = max(self._hold_s, self._stops.longest_s / _STOP_SHARE)

    def hint(self, rate: float, now: float) -> None:
        """Takes over a rate that the service announced: once for each value, and until refusals measure another."""
        if rate == self._hint:
            return
        self._hint = rate
        self._renew()
        self._known = self._base = rate
        self._hold_s = math.inf  # every answer announces the rate again, so sweeping would find nothing
        self._choose(now, "holding", _HOLD_SHARE * rate, "announced by the service")

    def _leave_free(self, refusals: Refusals, now: float) -> None:
        """Searches if most calls are refused; a count is enough if few are."""
        share = refusals.share
        is_mostly = refusals.num_refused >= _MANY_REFUSED and share >= _MOSTLY_REFUSED
        if refusals.stopped_s > 0.0 or is_mostly or (refusals.num_refused >= _SURELY_REFUSED and share >= MOST_SHARE):
            self._search(now, _FIRST_RATE, "refusals")
            return
        is_enough = refusals.num_refused >= _ENOUGH_REFUSED and refusals.num_accepted >= _ENOUGH_ACCEPTED
        if is_enough and refusals.elapsed_s >= _LEAST_ELAPSED_S and share < MOST_SHARE:
            self._lowered_from = ("free", None, share)
            self._hold(now, refusals.num_accepted / refusals.elapsed_s, refusals, "few refusals")

    def _test(self, refusals: Refusals, now: float) -> None:
        """Sends slowly for a while, to see whether refusals go on that do not depend on the rate."""
        self._base = refusals.num_accepted / refusals.elapsed_s
        self._renew(refusals)
        self._chance.begin_test(self.current, refusals.share)
        self._test_until = math.inf
        self._test_ends_at = now + _LONGEST_TEST_S
        self._choose(now, "testing", TEST_RATE * self._base, "whether refusals are chance")

    def _test_on(self, now: float) -> None:
        if self._test_until == math.inf and self._chance.is_over(self.current):
            self._test_until = now + _LISTEN_ECHOES * self._echo_s
        if now >= min(self._test_until, self._test_ends_at):
            self._chance.end_test()
            self._lowered_from = None
            self._hold(now, self._base, self._previous, "refusals are not chance")

    def _go_back(self, now: float) -> None:
        """Goes back to the rate that refusals lowered, because they are chance."""
        state, rate, _ = self._lowered_from or ("climbing", self._base, 0.0)
        self._lowered_from = None
        if rate is None:
            self._renew()
            self.state, self.rate = "free", None
            self.history.append((now, math.inf, "free: refusals are chance"))
        elif state == "searching":
            self._search(now, rate, "refusals are chance")
        else:
            self._renew()
            self._excess_step = 0.0
            self._climb(now, rate, _MOST_FIRST_EXCESS, "refusals are chance")

    def _search(self, now: float, rate: float, reason: str) -> None:
        self._renew()
        self._search_from = rate
        self._doublings = 0
        self._choose(now, "searching", rate, reason)

    def _search_on(self, now: float) -> None:
        assert self.rate is not None
        self._prove()
        if self._doublings < _SEARCH_DOUBLINGS:
            self._doublings += 1
            self._choose(now, "searching", 2.0 * self.rate, "no refusals")
        else:
            self._listen(now, self._search_from)

    def _spend(self, now: float) -> None:
        saved = self._saved + (now - self._saved_at) * self._base
        self._saved = min(saved, _MOST_SAVED_S * self._base) - 1.0
        self._saved_at = now

    def _hush(self, now: float) -> None:
        """Resets the saved allowance: a service that refuses has none left.

        Calls sent before the refusal arrived prove nothing, so the quiet time restarts one echo later.
        """
        self._saved, self._saved_at = 0.0, now
        self._quiet_s = -self._echo_s
        self._quiet_calls = 0

    def _prove(self) -> None:
        """Records that nothing was refused at this rate for a while. The service had allowance left: a count ends."""
        assert self.rate is not None
        self._chance.measure(self.current)
        self._lowered_from = None
        self._proven = self.rate if self._saved <= 0.0 else min(self.rate, self._base)
        self._quiet_s = 0.0
        self._quiet_calls = 0
        if self.current.num_heard > 0:
            self._renew()

    def _listen(self, now: float, rate: float) -> None:
        self._renew()
        self._listen_until = now + _LISTEN_ECHOES * self._echo_s
        self._choose(now, "listening", rate, "for refusals on their way")

    def _end_listening(self, now: float) -> None:
        heard = self._previous
        heard.settle(now)
        if heard is self._sweep and heard.num_heard > 0:
            self._hold(now, self._swept(heard), heard, "measured by sweep")
        elif heard is self._sweep:
            in_flight = max(self._echo_s * self._base, 1.0)
            excess = min(max(_CLIMB_REFUSALS / in_flight, _LEAST_EXCESS), _MOST_FIRST_EXCESS)
            self._excess_step = 0.0
            self._quiet_s = 0.0
            self._climb(now, self._base, excess, "sweep accepted")
        elif heard.num_refused >= 2 and heard.elapsed_s > 0.0:
            self._adopt(heard, now)
        else:
            self._search(now, self._search_from * 2.0 ** (_SEARCH_DOUBLINGS - 1), "all accepted")

    def _begin_sweep(self, now: float, base: float, span: float, num_calls: int, reason: str) -> None:
        self._renew()
        if self._chance.share > 0.0:  # a single refusal would end the sweep
            self._excess_step = 0.0
            self._climb(now, max(base, min(self._proven, span * base)), _MOST_FIRST_EXCESS / 4.0, reason)
            return
        self._sweep = self.current
        self._sweep_growth = span ** (1.0 / num_calls)
        self._sweep_end = base * span
        self._sweep_from = self._base = base
        self._choose(now, "sweeping", base, reason)

    def _sweep_between(self, now: float, at_least: float, refused: float) -> None:
        """Sweeps from a lower bound up to the refused rate.

        A doubtful count is a lower bound; so is a proven rate, if it is below the refused one.
        """
        if at_least < self._proven < refused:
            at_least = self._proven
        span = min(max(refused / at_least, _NARROW_SWEEP), _WIDE_SWEEP)
        self._begin_sweep(now, at_least, span, _WIDE_SWEEP_CALLS, "counted, but doubtful")

    def _sweep_on(self, now: float) -> None:
        assert self.rate is not None
        self.rate *= self._sweep_growth
        if self.rate > (1.0 + _ROUNDING) * self._sweep_end:
            self._listen(now, _HOLD_SHARE * self._base)

    def _swept(self, refusals: Refusals) -> float:
        return max(self._sweep_from, refusals.lowest_rate / self._sweep_growth)

    def _climb(self, now: float, base: float, excess: float, reason: str) -> None:
        self._base = base
        self._excess = excess
        self._choose(now, "climbing", base * (1.0 + excess), reason)

    def _climb_on(self, now: float) -> None:
        """Raises the rate further, but little until the service's saved-up allowance must be spent.

        Before that, a rate without refusals does not prove a higher limit.
        """
        excess = max(2.0 * self._excess, self._excess_step)
        if self._saved > 0.0:
            excess = min(excess, max(self._excess, _SPENDING_EXCESS))
        self._climb(now, self._base, excess, "no refusals")

    def _climb_doubling_s(self) -> float:
        # Right above the limit, one call in 1 / excess is refused; wait for twice as many calls.
        num_calls = max(_CLIMB_CALLS, 2.0 / (self._excess + self._excess_step)) if self._excess_step else _CLIMB_CALLS
        calls_s = min(num_calls / self._base, _CLIMB_CALLS_S)
        return max(_CLIMB_DOUBLING_S, _CLIMB_ECHOES * self._echo_s, calls_s)

    def _hold(self, now: float, measured: float, refusals: Refusals, reason: str) -> None:
        is_late = refusals is self._previous and self.state == "holding"
        if not is_late:
            self._hold_s = max(_HOLD_S, min(_HOLD_ECHOES * self._echo_s, _LONGEST_HOLD_S))
            self._renew(refusals)
        self._known = self._base = measured
        self._choose(now, "holding", _HOLD_SHARE * measured, reason)

    def _halve_if_mostly_refused(self, index: int, now: float) -> bool:
        """Halves the rate if most calls are refused, and says whether it did.

        Far more than half refused means that we send at more than twice the service's rate, so half of our rate is
        still fast enough to count at. The share is taken since the first refusal, because allowance may have been
        saved up before.
        """
        assert self.rate is not None
        if index < self._watched_from:
            return False
        self._num_watched += 1
        self._first_refused = min(self._first_refused, index)
        self._last_refused = max(self._last_refused, index)
        num_sent = self._last_refused - self._first_refused + 1
        if self._num_watched < max(_MANY_REFUSED, _MOSTLY_REFUSED * num_sent):
            return False
        self._hush(now)
        self._watch_from(self.current.num_sent + 1)
        half = max(self.rate / 2.0, _LEAST_RATE)
        if self.state in ("searching", "listening"):
            self._choose(now, self.state, half, "mostly refused")
        else:
            self._excess_step = 1.0
            self._climb(now, half / (1.0 + _LEAST_EXCESS), _LEAST_EXCESS, "mostly refused")
        return True

    def _judge(self, refusals: Refusals, now: float) -> None:
        """Adopts a count as soon as it is good enough."""
        slow_but_enough = refusals.elapsed_s >= _ENOUGH_ELAPSED_S and refusals.num_refused >= _ENOUGH_REFUSED
        is_enough = refusals.num_accepted >= _ENOUGH_ACCEPTED or slow_but_enough or refusals.stopped_s > 0.0
        if refusals.elapsed_s >= _LEAST_ELAPSED_S and is_enough:
            self._adopt(refusals, now)

    def _adopt(self, refusals: Refusals, now: float) -> None:
        accepted, elapsed_s = refusals.num_accepted, refusals.elapsed_s
        at_least = max(accepted, 1) / elapsed_s
        if accepted == 0 and refusals.num_refused >= _ENOUGH_REFUSED and self.rate is not None:
            self._search(now, max(self.rate / 2.0, _LEAST_RATE), "all refused")
            return
        share = refusals.share
        if refusals is self.current and share < MOST_SHARE and refusals.stopped_s == 0.0:
            if self._lowered_from is None:
                self._lowered_from = (self.state, self.rate, share)
            elif self.state == "holding":
                self._test(refusals, now)
                return
        if self._is_known(at_least):
            self._hold(now, self._known or at_least, refusals, "the same rate again")
            return
        if refusals.stopped_s > _DOUBTFUL_STOPS * elapsed_s:
            self._narrow(now, at_least, refusals)
            return
        if refusals.num_refused >= _DOUBTFUL_SHARE * (refusals.num_refused + accepted):
            self._sweep_between(now, at_least, refusals.lowest_rate)
            return
        if accepted >= _GOOD_ACCEPTED:
            self._hold(now, accepted / elapsed_s, refusals, "measured by count")
            return
        # One more accepted call than was counted bounds the rate from above. At that bound the service keeps refusing
        # a little, and the count goes on until it is good.
        bound = (accepted + 1) / elapsed_s
        if refusals is self.current:
            assert self.rate is not None
            bound = min(bound, self.rate / (1.0 + _LEAST_EXCESS))
        elif self.state != "climbing":
            self._renew(refusals)
        self._excess_step = 1.0 / (accepted + 1)
        self._climb(now, bound, _LEAST_EXCESS, "counted roughly")

    def _is_known(self, counted: float) -> bool:
        """Whether a climb ended at the rate it began with; then a better count is not worth its refusals."""
        if self.state != "climbing" or self._known is None or self.rate is None or self.rate < self._known:
            return False
        return abs(counted / self._known - 1.0) <= 1.0 / _ENOUGH_ACCEPTED

    def _narrow(self, now: float, at_least: float, refusals: Refusals) -> None:
        """Tries a rate between the accepted (or proven) one and the lowest refused one: stops leave only bounds."""
        if at_least < _PLAUSIBLE_SHARE * self._proven:
            at_least = self._proven
            self._proven *= _LESS_PROVEN
        trial = min(math.sqrt(at_least * refusals.lowest_rate), _FURTHEST_TRIAL * at_least)
        self._hold(now, trial / _HOLD_SHARE, refusals, "between bounds")

    def _renew(self, previous: Refusals | None = None) -> None:
        """Starts a new measurement for the calls sent from now on; late refusals still count for `previous`."""
        self._previous = previous or self.current
        self.current = Refusals()
        self._quiet_s = 0.0
        self._quiet_calls = 0
        self._watch_from(0)

    def _watch_from(self, index: int) -> None:
        """Restarts the count of mostly refused calls at call `index`."""
        self._watched_from = index
        self._num_watched = 0
        self._first_refused = math.inf
        self._last_refused = -math.inf

    def _choose(self, now: float, state: RateState, rate: float, reason: str) -> None:
        is_news = self.rate is None or state != self.state or abs(rate / self.rate - 1.0) > _NEWS
        self.state = state
        self.rate = rate
        if is_news:
            self.history.append((now, 60.0 * rate, f"{state}: {reason}"))
