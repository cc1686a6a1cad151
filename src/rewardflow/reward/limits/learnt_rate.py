"""Learning a service's rate from its 429s alone.

Always true: a 429 changes the rate only if it answers a call sent since the rate was last chosen; a late one merely
sharpens the measurement it belongs to.

Two measurements, and neither needs to be told what was accepted: what was sent and not refused was.

By count: a service that refuses a call has nothing left to give, so between two refused calls it accepted just what
its rate allowed: accepted / elapsed is the rate, whatever the burst and however we sent, as long as we sent faster
than it. By sweep: a service that saves up nothing (a burst of one) is the exception. Asked a little too fast it
refuses every second call, and the count comes out up to twice too low. A short run of calls that come faster and
faster finds its rate: that of the last call before the first refusal. A service with a burst refuses little of a
sweep, or nothing.

A burst also hides the limit. Since it last refused a call, the service may have saved up what its rate allowed and we
did not send: by holding a little below the rate, and in idle time. Until all of that is spent, a call that is not
refused proves nothing about a higher limit.

    free -> searching -> listening -> sweeping -> listening -> climbing -> holding -> sweeping ...

free: no limit known. searching: the rate doubles every two seconds. sweeping: as above. listening: back at the rate
before, until what was sent too fast would have been refused. climbing: above the best estimate, further every few
seconds but not far while there may be something saved up, so that this is spent and a raised limit is found; a
refusal begins a count. holding: just below a measured rate, for one minute and 200 calls, and twice as long each time
the same rate is found again, up to five; refusals so rare that they may be chance change nothing. Idle time counts
for nothing: only calls sent as fast as the rate allowed move any of these on.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Literal

from rewardflow.reward.limits.refusals import Refusals

RateState = Literal["free", "searching", "listening", "sweeping", "climbing", "holding"]

_FIRST_RATE = 1.0  # calls per second that a search begins with
_LEAST_RATE = 1 / 30  # and goes back to while everything is refused
_SEARCH_DOUBLING_S = 2.0
_SEARCH_CALLS = 3  # and not before this many calls
_SEARCH_DOUBLINGS = 6
_LISTEN_ECHOES = 1.25
_ECHO_WEIGHT = 0.01  # of each refusal; a slower one counts at once
_ROUNDING = 1e-6

_HOLD_SHARE = 0.97
_FIRST_HOLD_S = 60.0
_LONGEST_HOLD_S = 300.0
_LEAST_HOLD_CALLS = 200  # looking again costs a few refusals
_SAME_RATE = 0.10  # two measurements this close found nothing new

_NARROW_SWEEP = 1.1  # how far it goes, as a factor: more would tell little of a service with a small burst
_NARROW_SWEEP_CALLS = 12  # of which half may be refused before the first refusal is heard
_WIDE_SWEEP = 2.0  # as far as a count can be wrong
_WIDE_SWEEP_CALLS = 24

_LEAST_EXCESS = 0.01
_MOST_FIRST_EXCESS = 0.10
_CLIMB_REFUSALS = 10  # refusals on their way when the first one arrives, if a climb begins right above the limit
_CLIMB_DOUBLING_S = 8.0  # or, if that is longer, this many echoes or calls
_CLIMB_ECHOES = 2.5
_CLIMB_CALLS = 40
_CLIMB_CALLS_S = 120.0  # calls of slow services are not waited for longer
_SPENDING_EXCESS = 0.4  # as far as a climb goes while the service may still have something saved up
_MOST_SAVED_S = 60.0  # limits are per minute: no service saves up more

_ENOUGH_ACCEPTED = 20  # between refusals, for a count to act on: 5 % exact
_GOOD_ACCEPTED = 100  # to hold at it: 1 % exact
_LEAST_ELAPSED_S = 0.5  # in less, chance and the loop's own timing decide
_ENOUGH_ELAPSED_S = 10.0  # slow services: act on fewer after this long
_ENOUGH_REFUSED = 8
_DOUBTFUL_SHARE = 0.4  # refused this often, the count may be half of the rate
_DOUBTFUL_STOPS = 0.1  # stopped for this share of the time, it may be lower still
_PLAUSIBLE_SHARE = 0.7  # of a proven rate; a count below that has lost much in stops
_LESS_PROVEN = 0.85  # each time a proven rate is relied on and refused again
_FURTHEST_TRIAL = 1.25
_MANY_REFUSED = 6  # and this share of what was sent: halve without waiting for a count
_MOSTLY_REFUSED = 0.6
_CHANCE_REFUSALS = 3  # while holding: so many, and this share of what was accepted, may be chance
_CHANCE_SHARE = 0.02
_HISTORY = 64
_NEWS = 0.01  # smaller changes of rate stay out of the history


class LearntRate:
    """Calls per second that a service accepts, in `rate` (None while no limit is known)."""

    def __init__(self) -> None:
        self.state: RateState = "free"
        self.rate: float | None = None
        self.current = Refusals()  # of calls sent since the rate was last chosen
        self.history: deque[tuple[float, float, str]] = deque(maxlen=_HISTORY)
        self._previous = Refusals()
        self._echo_s = 0.0  # how long a refusal takes to come back
        self._quiet_s = 0.0  # time spent sending at full rate without a refusal
        self._quiet_calls = 0  # calls sent in it
        self._search_from = _FIRST_RATE
        self._doublings = 0
        self._listen_until = math.inf
        self._sweep: Refusals | None = None
        self._sweep_growth = 1.0  # from call to call
        self._sweep_from = self._sweep_end = 0.0
        self._base = 0.0  # the best estimate: what sweep and climb start from
        self._saved = 0.0  # calls that the service may have saved up since it last refused one
        self._saved_at = 0.0
        self._excess = 0.0
        self._excess_step = 0.0
        self._known: float | None = None
        self._proven = 0.0  # the last rate at which nothing was refused for a while
        self._hold_s = _FIRST_HOLD_S
        self._hint: float | None = None
        self._watched_from = 0
        self._num_watched = 0  # refusals from there on
        self._first_refused = math.inf
        self._last_refused = -math.inf

    def sent(self, now: float, spent_s: float) -> None:
        """A call starts. `spent_s`: time for which the rate held it back, 0 if it came late for other reasons."""
        self._spend(now)
        if spent_s > 0.0:
            self._quiet_s += spent_s
            self._quiet_calls += 1
        if self.state == "sweeping":
            if spent_s > 0.0:
                self._sweep_on(now)
        elif self.state == "holding":
            is_over = self._quiet_s >= self._hold_s and self._quiet_calls >= _LEAST_HOLD_CALLS
            if is_over and self._known is not None:
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

    def refused(self, refusals: Refusals, sent_at: float, index: int, sent_rate: float, now: float) -> None:
        """The call sent as number `index` of `refusals`, at `sent_rate`, was answered 429."""
        refusals.add(sent_at, index, sent_rate)
        latency_s = now - sent_at
        self._echo_s = max(latency_s, self._echo_s + _ECHO_WEIGHT * (latency_s - self._echo_s))
        refusals.settle(now - (1.0 - _ROUNDING) * self._echo_s)
        is_current = refusals is self.current
        is_chance = is_current and self.state == "holding" and _is_chance(refusals)
        if is_current and not is_chance:
            self._hush(now)
        elif not is_current and (refusals is not self._previous or self.current.num_heard >= 2):
            return
        if self.state == "free":
            self._search(now, _FIRST_RATE, "first 429")
        elif refusals is self._sweep:
            if self.state == "sweeping":  # refusals of slower calls may still be on their way
                self._listen(now, _HOLD_SHARE * self._base)
            elif self.state != "listening":
                self._hold(now, self._swept(refusals), refusals, "measured by sweep")
        elif not (is_current and self._halve_if_mostly_refused(index, now)) and not is_chance:
            self._judge(refusals, now)

    def stopped(self, stopped_s: float) -> None:
        """A Retry-After stops all sending. Meanwhile the service may lose what it cannot save up."""
        if self.current.num_heard > 0:
            self.current.stopped_s += stopped_s

    def hint(self, rate: float, now: float) -> None:
        """The service announced a rate. Believed once for each value, and then until refusals measure another."""
        if rate == self._hint:
            return
        self._hint = rate
        self._renew()
        self._known = self._base = rate
        self._hold_s = math.inf  # announced again with every answer: nothing to find by sweeping
        self._choose(now, "holding", _HOLD_SHARE * rate, "announced by the service")

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
        """A service that refuses has nothing left, and what was sent before the refusal was heard proves nothing."""
        self._saved, self._saved_at = 0.0, now
        self._quiet_s = -self._echo_s
        self._quiet_calls = 0

    def _prove(self) -> None:
        """Nothing was refused at this rate for a while, so the service had something left: an older count ends here."""
        assert self.rate is not None
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
        self._sweep = self.current
        self._sweep_growth = span ** (1.0 / num_calls)
        self._sweep_end = base * span
        self._sweep_from = self._base = base
        self._choose(now, "sweeping", base, reason)

    def _sweep_between(self, now: float, at_least: float, refused: float) -> None:
        """A doubtful count is a lower bound. So is a proven rate, if it is below the one that was refused."""
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
        """Nothing refused at this rate proves a higher limit only when all that may have been saved up is spent."""
        excess = max(2.0 * self._excess, self._excess_step)
        if self._saved > 0.0:
            excess = min(excess, max(self._excess, _SPENDING_EXCESS))
        self._climb(now, self._base, excess, "no refusals")

    def _climb_doubling_s(self) -> float:
        # Right above the limit one call in 1 / excess is refused; wait twice that long for it.
        num_calls = max(_CLIMB_CALLS, 2.0 / (self._excess + self._excess_step)) if self._excess_step else _CLIMB_CALLS
        calls_s = min(num_calls / self._base, _CLIMB_CALLS_S)
        return max(_CLIMB_DOUBLING_S, _CLIMB_ECHOES * self._echo_s, calls_s)

    def _hold(self, now: float, measured: float, refusals: Refusals, reason: str) -> None:
        is_late = refusals is self._previous and self.state == "holding"
        if not is_late:
            is_same = self._known is not None and abs(measured / self._known - 1.0) < _SAME_RATE
            was_looking = self.state != "holding"  # and not held too fast
            self._hold_s = min(2.0 * self._hold_s, _LONGEST_HOLD_S) if is_same and was_looking else _FIRST_HOLD_S
            self._renew(refusals)
        self._known = self._base = measured
        self._choose(now, "holding", _HOLD_SHARE * measured, reason)

    def _halve_if_mostly_refused(self, index: int, now: float) -> bool:
        """Far more than half refused means more than twice the rate, so that half of it can still be counted.

        The share is that since the first refusal: what was accepted before may have been saved up.
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
        """Act on a count as soon as it is good enough to act on."""
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
        # One more than was counted bounds the rate from above: at that the service keeps refusing a little, and the
        # count goes on until it is good.
        bound = (accepted + 1) / elapsed_s
        if refusals is self.current:
            assert self.rate is not None
            bound = min(bound, self.rate / (1.0 + _LEAST_EXCESS))
        elif self.state != "climbing":
            self._renew(refusals)
        self._excess_step = 1.0 / (accepted + 1)
        self._climb(now, bound, _LEAST_EXCESS, "counted roughly")

    def _is_known(self, counted: float) -> bool:
        """A climb that ends at the rate it began with needs no better count, which would cost more refusals."""
        if self.state != "climbing" or self._known is None or self.rate is None or self.rate < self._known:
            return False
        return abs(counted / self._known - 1.0) <= 1.0 / _ENOUGH_ACCEPTED

    def _narrow(self, now: float, at_least: float, refusals: Refusals) -> None:
        """Stops leave only bounds: try between what was accepted, or proven, and the lowest rate refused."""
        if at_least < _PLAUSIBLE_SHARE * self._proven:
            at_least = self._proven
            self._proven *= _LESS_PROVEN
        trial = min(math.sqrt(at_least * refusals.lowest_rate), _FURTHEST_TRIAL * at_least)
        self._hold(now, trial / _HOLD_SHARE, refusals, "between bounds")

    def _renew(self, previous: Refusals | None = None) -> None:
        """Calls sent from here on are measured by themselves; late refusals still count for `previous`."""
        self._previous = previous or self.current
        self.current = Refusals()
        self._quiet_s = 0.0
        self._quiet_calls = 0
        self._watch_from(0)

    def _watch_from(self, index: int) -> None:
        """Whether most of the calls are refused is asked of those from `index` on."""
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


def _is_chance(refusals: Refusals) -> bool:
    """Refusals this rare cost less than looking for the limit again would. A Retry-After is meant."""
    is_rare = refusals.num_refused < _CHANCE_REFUSALS + _CHANCE_SHARE * refusals.num_accepted
    return is_rare and refusals.stopped_s == 0.0
