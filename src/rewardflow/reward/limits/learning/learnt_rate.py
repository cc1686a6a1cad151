"""Learns a service's rate from its 429s alone.

Always true: a 429 changes the rate only if it answers a call sent since the rate was last chosen; a late 429 only
refines the measurement that its call belongs to.

Two measurements find the rate: a count of the calls accepted between two refusals (`counted_rate.py`), and a sweep of
calls that come faster and faster (`rate_probes.py`). Both take a call that was sent and not refused as accepted. This
module decides after each call and each refusal which state follows; `rate_states.py` describes the states.

A burst hides the limit. Since its last refusal, the service may have saved up allowance that we did not use: while we
held a little below the rate, and in idle time. Until that allowance is spent, an accepted call proves nothing about a
higher limit.

A Retry-After of many seconds makes refusals dear. Then the rate is narrowed down between bounds (`long_stops.py`).

A service that counts calls in windows refuses everything when one is full, which says nothing about its rate. When it
accepts calls again, the rate is what it accepted since the opening before (`closed_windows.py`).

A limit without a burst is hardly used at a rate that it refuses little of. Where refusals are free, calls are sent much
faster than it accepts (`soft_limits.py`, `pressing.py`).
"""

from __future__ import annotations

import math
from collections import deque

from rewardflow.reward.limits.learning.chance_refusals import MOST_SHARE, ChanceRefusals
from rewardflow.reward.limits.learning.closed_windows import ClosedWindows, Opening
from rewardflow.reward.limits.learning.counted_rate import (
    ENOUGH_ACCEPTED,
    accepts_nothing,
    counted_rate,
    is_cut_by_stops,
    is_doubtful,
    is_good,
    is_usable,
    needs_search,
    shows_first_limit,
    shows_no_burst,
)
from rewardflow.reward.limits.learning.long_stops import LongStops
from rewardflow.reward.limits.learning.pressing import LONGEST_PRESS_S, Press, hardly_refuses, weight_of_refusal
from rewardflow.reward.limits.learning.rate_probes import (
    LEAST_EXCESS,
    MOST_FIRST_EXCESS,
    NARROW_SWEEP,
    NARROW_SWEEP_CALLS,
    WIDE_SWEEP,
    WIDE_SWEEP_CALLS,
    RateClimb,
)
from rewardflow.reward.limits.learning.rate_states import FIRST_RATE, HOLD_SHARE, LEAST_RATE, RateState, RateStates
from rewardflow.reward.limits.learning.refusals import Refusals
from rewardflow.reward.limits.learning.soft_limits import SoftLimitEvidence, burst_size, refuses_bursts

_ROUNDING = 1e-6
_PLAUSIBLE_SHARE = 0.7  # of a proven rate; a count below this lost much of its time in stops
_LESS_PROVEN = 0.85  # factor for a proven rate, each time it is relied on and refused again
_FURTHEST_TRIAL = 1.25
_FURTHEST_FALL = 1.1  # the share by which a climb may be above a quiet rate that it falls back to
_CLOSE_EXCESS = 0.06  # a refused climb that is this close to the quiet rate needs no further one
_FAR_APART = 2.0  # calls that would have been accepted in between: so far apart few are refused
_SOFT_STEP = 1.05  # above the counted rate, at which a soft limit still refuses calls and another refuses few


class LearntRate:
    """Learns how many calls per second a service accepts: `rate`, None while no limit is known.

    At most about `max_refused` of the calls are refused once the rate is known.
    """

    def __init__(self, max_refused: float = 0.0) -> None:
        self._max_refused = max_refused
        self._states = RateStates()
        self._stops = LongStops()
        self._chance = ChanceRefusals()
        self._windows = ClosedWindows()
        self._soft = SoftLimitEvidence()
        self._press: Press | None = None
        # The state and rate before refusals lowered the rate, and the share that was refused.
        self._lowered_from: tuple[RateState, float | None, float] | None = None
        self._proven = 0.0  # the last rate at which nothing was refused for a while
        self._hint: float | None = None

    @property
    def state(self) -> RateState:
        return self._states.state

    @property
    def rate(self) -> float | None:
        return self._states.rate

    @property
    def current(self) -> Refusals:
        """The refusals of calls sent since the rate was last chosen."""
        return self._states.current

    @property
    def history(self) -> deque[tuple[float, float, str]]:
        """The last changes: when, to how many calls a minute, and why."""
        return self._states.history

    @property
    def accepted_rate(self) -> float | None:
        """Calls per second that the service accepts, as far as known: less than `rate` while a limit is pressed."""
        return self.rate if self._press is None else self._press.accepted

    @property
    def pressed_share(self) -> float:
        """The share of calls that are refused because the limit is pressed; 0 if it is not."""
        return 0.0 if self._press is None else self._press.refused_share

    def refusal_weight(self, gap_s: float, now: float) -> float:
        """Returns how much a refusal counts against its request: less than 1 while most calls are refused on purpose.

        `gap_s` is the time since the call before. A call that follows no other closely would be accepted. A service
        that is closed refuses every request.
        """
        if self._windows.is_closed(now):
            return 0.0
        if self._press is None or gap_s * self._press.accepted >= _FAR_APART:
            return 1.0
        return weight_of_refusal(self._press.refused_share)

    def sent(self, now: float, spent_s: float) -> None:
        """Records that a call starts. `spent_s` is how long the rate delayed it, 0 if other reasons did."""
        states = self._states
        states.sent(now, spent_s)
        self._stops.num_sent += 1
        opening = self._windows.sent(states.current.num_before + states.current.num_sent + 1, now, states.listen_s)
        if opening is not None and self._press is None and self._hint is None:
            self._open_again(now, opening)
        elif states.state == "sweeping":
            if spent_s > 0.0:
                states.sweep_on(now)
        elif states.state == "testing":
            is_chance = self._chance.test_shows_chance(now, states.listen_s)
            if is_chance is not None:
                self._end_test(now, is_chance=is_chance)
        elif states.state == "bursting":
            self._burst_on(now)
        elif states.state == "pressing":
            self._press_on(now)
        elif states.is_over(now):
            self._go_on(now)

    def refused(self, refusals: Refusals, sent_at: float, index: int, sent_rate: float, now: float) -> None:
        """Records a 429 for the call sent as number `index` of `refusals`, at `sent_rate`."""
        states = self._states
        refusals.add(sent_at, index, sent_rate)
        states.heard(now - sent_at)
        settled_before = now - (1.0 - _ROUNDING) * states.echo_s
        refusals.settle(settled_before)
        self._windows.refused(refusals.num_before + index, sent_at, settled_before)
        self._stops.refused_rate = sent_rate
        if now < self._stops.ends_at:  # the stop has already answered for the calls that were out
            return
        is_current = refusals is states.current
        if refusals.is_trial or self._press is not None:
            if is_current and states.state == "pressing":
                self._press_on(now)
            return
        if self._chance.refused(refusals, index):
            self._end_test(now, is_chance=True)
            return
        may_be_chance = states.state in ("free", "holding", "testing") or self._chance.is_expected
        is_chance = may_be_chance and self._chance.explains(refusals)
        if is_current and not is_chance:
            states.hush(now)
        elif not is_current and (refusals is not states.previous or states.current.num_heard >= 2):
            return
        if states.state == "free":
            if not is_chance:
                self._leave_free(refusals, now)
        elif states.state == "testing":
            pass
        elif states.sweep is not None and refusals is states.sweep.refusals:
            if states.state == "sweeping":  # refusals of slower calls may still be in flight
                states.listen(now, HOLD_SHARE * states.base)
            elif states.state != "listening":
                states.hold(now, states.sweep.measured_rate(), refusals, "measured by sweep")
        elif is_current and (self._fall_back(now) or states.halve_if_mostly_refused(index, now)):
            return
        elif not is_chance and is_usable(refusals):
            self._adopt(refusals, now)

    def stopped(self, stopped_s: float, now: float) -> None:
        """Records that a Retry-After stops all sending. Meanwhile the service may lose allowance it cannot save up."""
        states = self._states
        self._soft.stopped()
        if self._press is not None:
            self._end_press(now, "refusals stop all sending", in_vain=True)
        if states.current.num_heard > 0:
            states.current.stopped_s += stopped_s
        at_least = self._stops.stopped(stopped_s, now)
        if now < self._stops.ends_at and states.state == "free":
            states.search(now, FIRST_RATE, "refusals")
        elif at_least is not None:
            self._bound(now, at_least)

    def hint(self, rate: float, now: float) -> None:
        """Takes over a rate that the service announced: once for each value, and until refusals measure another."""
        if rate != self._hint:
            self._hint = rate
            self._press = None
            self._states.hold_announced(now, rate)

    def _go_on(self, now: float) -> None:
        """Goes on to the next rate or state, because enough calls were sent at this rate."""
        states = self._states
        if states.state == "searching":
            self._prove()
            states.search_on(now)
        elif states.state == "climbing":
            self._prove()
            states.climb_on(now)
        elif states.state == "listening":
            self._end_listening(now)
        elif states.state == "holding" and states.known is not None:
            held, was_free = states.current, self._lowered_from is not None and self._lowered_from[0] == "free"
            self._soft.held(held, states.known)
            is_soft = self._soft.is_soft(now, is_surely_limit=self._chance.is_limit_soft)
            if is_soft and not was_free and self._begin_press(held, now):
                return
            if self._lowered_from is not None and self._chance.goes_on(held, self._lowered_from[2]):
                self._go_back(now)
                return
            self._prove()
            states.quiet_rate = states.rate or 0.0
            self._sweep(now, states.known, NARROW_SWEEP, NARROW_SWEEP_CALLS, "held long enough")

    def _bound(self, now: float, at_least: float) -> None:
        """Holds a rate between the bounds that a long stop told; for long if they are close, as each stop is dear."""
        states, known = self._states, self._states.known
        if states.state in ("climbing", "listening") and known is not None and known <= self._stops.refused_rate:
            at_least = max(at_least, known)
        trial = self._stops.trial_rate(at_least)
        states.hold(now, trial, states.current, "between bounds")
        states.hold_s = max(states.hold_s, self._stops.hold_s(trial))

    def _open_again(self, now: float, opening: Opening) -> None:
        """Goes on at what the service accepts in the long run, after it refused everything for a while."""
        self._lowered_from = None
        self._chance.forget_test()
        if opening.rate is None:
            self._states.search(now, FIRST_RATE, "open again")
        else:
            self._states.hold(now, opening.rate, self._states.current, "open again")
        self._states.renew()  # what was refused before tells no rate

    def _leave_free(self, refusals: Refusals, now: float) -> None:
        """Searches if most calls are refused; a count is enough if few are."""
        if needs_search(refusals):
            self._states.search(now, FIRST_RATE, "refusals")
        elif shows_first_limit(refusals):
            self._lowered_from = ("free", None, refusals.share)
            self._states.hold(now, counted_rate(refusals), refusals, "few refusals")

    def _test(self, refusals: Refusals, now: float) -> None:
        """Sends slowly for a while, to see whether refusals go on that do not depend on the rate."""
        assert self._states.rate is not None
        # Slots that are busy in waves make a count too low; the rate that is held was accepted but for the refusals.
        accepted = max(counted_rate(refusals), self._states.rate * (1.0 - refusals.share))
        self._states.test(now, accepted, refusals)
        self._chance.begin_test(self._states.current, refusals.share, now)

    def _end_test(self, now: float, *, is_chance: bool) -> None:
        states = self._states
        self._chance.end_test(is_chance=is_chance)
        if is_chance:
            self._go_back(now)
        else:
            self._lowered_from = None
            states.hold(now, _SOFT_STEP * states.base, states.previous, "refusals are not chance")

    def _go_back(self, now: float) -> None:
        """Goes back to the rate that refusals lowered, because they are chance."""
        state, rate, _ = self._lowered_from or ("climbing", self._states.base, 0.0)
        self._lowered_from = None
        if rate is None:
            self._states.free(now, "refusals are chance")
        elif state == "searching":
            self._states.search(now, rate, "refusals are chance")
        else:
            self._states.renew()
            self._states.climb(now, rate, RateClimb(MOST_FIRST_EXCESS), "refusals are chance")

    def _fall_back(self, now: float) -> bool:
        """Goes back to the last quiet rate if a climb is refused that is a little higher; says whether it did.

        Where refusals are chance no sweep can be made, because a single one would end it. But a service that refuses
        every second call of a climb has no burst, so that a rate without more than chance refusals is within its
        limit. Smaller and smaller climbs from there find the limit.
        """
        states, refusals = self._states, self._states.current
        if not self._chance.is_expected or states.state != "climbing" or states.rate is None:
            return False
        excess = states.rate / states.quiet_rate - 1.0 if states.quiet_rate > 0.0 else math.inf
        if not 0.0 < excess < _FURTHEST_FALL or not shows_no_burst(refusals):
            return False
        quiet = states.quiet_rate
        if excess <= _CLOSE_EXCESS:
            states.hold(now, quiet / HOLD_SHARE, refusals, "refused above")
        else:
            states.renew()
            states.climb(now, quiet, RateClimb(max(excess / 4.0, LEAST_EXCESS)), "refused above")
        return True

    def _prove(self) -> None:
        """Records that nothing was refused at this rate for a while."""
        states = self._states
        assert states.rate is not None
        self._chance.measure(states.current)
        self._lowered_from = None
        self._proven = states.rate if states.saved.is_spent else min(states.rate, states.base)
        states.end_quiet_time()

    def _begin_press(self, calls: Refusals, now: float) -> bool:
        """Begins to press a limit that refused `calls` at this rate, with a rest and a burst; says whether it did."""
        states = self._states
        if states.rate is None or not states.is_even:
            return False
        accepted = states.rate * (1.0 - calls.num_heard / calls.num_sent)
        press = Press(states.rate, accepted, self._max_refused, until=now + LONGEST_PRESS_S)
        if press.is_possible:
            self._press = press
            states.rest(now, burst_size(press.polite_accepted) / accepted)
        return press.is_possible

    def _burst_on(self, now: float) -> None:
        """Starts calls at once after the rest, and then listens whether they are refused."""
        states, press = self._states, self._press
        assert press is not None
        num_sent = states.current.num_sent + 1  # with the call that starts now
        if num_sent == 1:
            states.burst(now)
        elif num_sent >= burst_size(press.polite_accepted):
            states.listen(now, press.polite_rate)

    def _press_on(self, now: float) -> None:
        """Goes on to the next rate above the limit, once it is known how many calls were accepted at this one."""
        states, press = self._states, self._press
        assert press is not None
        calls = states.current
        if hardly_refuses(calls):
            self._end_press(now, "hardly refused", in_vain=False, rate=press.rate)
        elif press.is_measured(calls):
            if now >= press.until:
                self._end_press(now, "pressed for long", in_vain=False)
            elif press.go_on(calls, is_even=states.is_even):
                states.press(now, press.rate)
            else:
                self._end_press(now, "no more are accepted", in_vain=True)

    def _end_press(self, now: float, reason: str, *, in_vain: bool, rate: float | None = None) -> None:
        """Goes on at `rate`, or at the one at which few calls were refused before."""
        press, self._press = self._press, None
        assert press is not None
        self._soft.pressed(now, press.polite_accepted, in_vain=in_vain)
        polite = min(press.polite_rate / HOLD_SHARE, _SOFT_STEP * press.polite_accepted)
        self._states.hold(now, rate or polite, self._states.current, reason)

    def _end_listening(self, now: float) -> None:
        """Goes on with what the calls before showed: those of a sweep, of a search, or those that came at once."""
        states, heard = self._states, self._states.previous
        heard.settle(now)
        if self._press is not None and heard.is_trial:
            if refuses_bursts(heard):
                states.press(now, self._press.rate)
            else:
                self._chance.is_limit_soft = False
                self._end_press(now, "calls at once are accepted", in_vain=True)
        elif states.sweep is not None and heard is states.sweep.refusals:
            if heard.num_heard > 0:
                states.hold(now, states.sweep.measured_rate(), heard, "measured by sweep")
            else:
                states.climb_after_sweep(now)
        elif heard.num_refused >= 2 and heard.elapsed_s > 0.0:
            self._adopt(heard, now)
        else:
            states.search_higher(now)

    def _sweep(self, now: float, base: float, span: float, num_calls: int, reason: str) -> None:
        self._states.renew()
        if self._chance.is_expected:  # a single refusal would end the sweep
            estimate = max(base, min(self._proven, span * base))
            self._states.climb(now, estimate, RateClimb(MOST_FIRST_EXCESS / 4.0), reason)
        else:
            self._states.begin_sweep(now, base, span, num_calls, reason)

    def _sweep_between(self, now: float, at_least: float, refused: float) -> None:
        """Sweeps from a lower bound up to the refused rate.

        A doubtful count is a lower bound; so is a proven rate, if it is below the refused one.
        """
        if at_least < self._proven < refused:
            at_least = self._proven
        span = min(max(refused / at_least, NARROW_SWEEP), WIDE_SWEEP)
        self._sweep(now, at_least, span, WIDE_SWEEP_CALLS, "counted, but doubtful")

    def _adopt(self, refusals: Refusals, now: float) -> None:
        """Goes on with the rate that a count gives, as far as the count can be relied on."""
        states = self._states
        at_least = max(refusals.num_accepted, 1) / refusals.elapsed_s
        if refusals is states.current and states.state == "holding":
            self._soft.held(refusals, states.base)
        if refusals is states.current and states.rate is not None and states.rate <= states.quiet_rate:
            states.quiet_rate = self._proven = 0.0  # allowance had kept it quiet, or the limit was lowered
        if accepts_nothing(refusals) and states.rate is not None:
            states.search(now, max(states.rate / 2.0, LEAST_RATE), "all refused")
            return
        share = refusals.share
        if refusals is states.current and share < MOST_SHARE and refusals.stopped_s == 0.0:
            if self._lowered_from is None:
                self._lowered_from = (states.state, states.rate, share)
            elif states.state == "holding":
                self._test(refusals, now)
                return
        if self._is_known(at_least):
            states.hold(now, states.known or at_least, refusals, "the same rate again")
        elif is_cut_by_stops(refusals):
            self._narrow(now, at_least, refusals)
        elif is_doubtful(refusals):
            self._sweep_between(now, at_least, refusals.lowest_rate)
        elif is_good(refusals):
            states.hold(now, counted_rate(refusals), refusals, "measured by count")
        else:
            self._count_on(refusals, now)

    def _count_on(self, refusals: Refusals, now: float) -> None:
        """Sends at the upper bound of a rough count: there the service refuses a little until the count is good."""
        states = self._states
        if self._chance.share == 0.0:  # chance refusals make counts rough too
            self._soft.counted(refusals)
        is_current = refusals is states.current
        if is_current and self._soft.is_soft(now, is_surely_limit=False) and self._begin_press(refusals, now):
            return
        num_bound = refusals.num_accepted + 1  # one more accepted call than was counted bounds the rate from above
        bound = num_bound / refusals.elapsed_s
        if is_current:
            assert states.rate is not None
            bound = min(bound, states.rate / (1.0 + LEAST_EXCESS))
        elif states.state != "climbing":
            states.renew(refusals)
        states.climb(now, bound, RateClimb(LEAST_EXCESS, step=1.0 / num_bound), "counted roughly")

    def _is_known(self, counted: float) -> bool:
        """Whether a climb ended at the rate it began with; then a better count is not worth its refusals."""
        rate, known = self._states.rate, self._states.known
        if self._states.state != "climbing" or known is None or rate is None or rate < known:
            return False
        return abs(counted / known - 1.0) <= 1.0 / ENOUGH_ACCEPTED

    def _narrow(self, now: float, at_least: float, refusals: Refusals) -> None:
        """Tries a rate between the accepted (or proven) one and the lowest refused one: stops leave only bounds."""
        if at_least < _PLAUSIBLE_SHARE * self._proven:
            at_least = self._proven
            self._proven *= _LESS_PROVEN
        trial = min(math.sqrt(at_least * refusals.lowest_rate), _FURTHEST_TRIAL * at_least)
        self._states.hold(now, trial / HOLD_SHARE, refusals, "between bounds")
