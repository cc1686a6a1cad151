"""Looks for the rate above a soft limit at which most calls are accepted.

Always true: a rate is kept only if it gets at least 15 % more calls accepted than the polite rate, at which few are
refused, and if each step of 1.5 times up to it gets at least 2 % more; about `max_refused` of the calls are refused at
most.

Calls that arrive wholly at random at `x` times a limit without a burst are accepted at `x / (1 + x)` of it. So the
search begins far above: close to the limit, evenly spaced calls may be accepted less often than a little below it.
"""

from __future__ import annotations

import math

from rewardflow.reward.limits.learning.refusals import Refusals

_FIRST_STEP = 6.0  # times the rate that is accepted
_LEAST_FIRST_GAIN = 1.15  # as a factor of what is accepted at the polite rate
_STEP = 1.5
_LEAST_GAIN = math.log(1.02) / math.log(_STEP)  # of the accepted rate: the exponent of the rate
_NEXT_STEP = 1.1  # a smaller one is not worth a measurement
_WINDOW_CALLS = 150  # accepted ones, that tell the accepted rate to about 2 %
_LEAST_TRIAL_CALLS = 40  # accepted ones, that may end a trial early
_DEVIATION = 0.2  # of the root of accepted calls: a limit makes them far more even than chance would
_SURE_DEVIATIONS = 4.0  # of the root of accepted calls, and some calls more: chance alone does not differ by this
_LEAST_TOLD = 12
_REST_WINDOWS = 12  # between two looks for a better rate
_MOST_UNEVEN = 4  # windows in a row that the slots, and not the rate, slowed down
_HARDLY_SHARE = 0.2
LONGEST_PRESS_S = 3600.0  # then the polite rate is measured again

_USUAL_SHARE = 0.2  # of refused calls, at which ten refusals in a row mean that the request is at fault


def hardly_refuses(calls: Refusals) -> bool:
    """Whether a rate is no longer far above the limit, because that was raised."""
    return calls.num_sent >= _WINDOW_CALLS / _HARDLY_SHARE and calls.num_heard < _HARDLY_SHARE * calls.num_sent


class Press:
    """A search for the best rate above the polite one. `rate` is the one to send at, in calls per second.

    `accepted` is how many calls per second are accepted at the best rate so far.
    """

    def __init__(self, polite_rate: float, polite_accepted: float, max_refused: float, *, until: float) -> None:
        self.polite_rate = polite_rate
        self.polite_accepted = polite_accepted
        self.until = until
        self._least_accepted = _LEAST_FIRST_GAIN * polite_accepted
        self._best_rate, self.accepted = polite_rate, polite_accepted
        self._most_refused = max_refused
        self._is_upwards = True
        self._num_failed = 0  # trials since the best rate changed
        self._num_rests = 0
        self._num_uneven = 0
        self.rate = min(_FIRST_STEP * polite_accepted, self._highest())

    @property
    def is_possible(self) -> bool:
        """Whether so many calls may be refused that pressing can begin."""
        return self.rate >= _STEP * self.polite_rate

    @property
    def refused_share(self) -> float:
        """The share of calls that are refused at the best rate; an upper bound while that is not measured."""
        rate = self._best_rate if self._best_rate > self.polite_rate else self.rate
        return min(max(0.0, 1.0 - self.accepted / rate), self._most_refused)

    def is_measured(self, calls: Refusals) -> bool:
        """Whether calls at `rate` tell how many are accepted, or that too few are."""
        accepted = calls.num_accepted
        if accepted >= _WINDOW_CALLS:
            return True
        is_trial = self.rate != self._best_rate
        expected = (calls.num_refused + accepted) * self._needed() / self.rate
        if is_trial and accepted >= _LEAST_TRIAL_CALLS:
            return accepted + _DEVIATION * math.sqrt(accepted) < expected
        return accepted + _SURE_DEVIATIONS * math.sqrt(accepted) + _LEAST_TOLD < expected

    def go_on(self, calls: Refusals, *, is_even: bool) -> bool:
        """Chooses the next rate from calls that were sent at `rate`; False if the limit is not worth pressing.

        `is_even` says that the rate alone decided when they were sent.
        """
        if not is_even:
            self._num_uneven += 1
            return self._num_uneven < _MOST_UNEVEN
        self._num_uneven = 0
        accepted = self.rate * (1.0 - calls.share)
        if self.rate != self._best_rate:
            return self._tried(accepted)
        if accepted < self._least_accepted:
            return False
        self.accepted = accepted
        if self._best_rate > _NEXT_STEP * self._highest():  # the service now accepts less
            self.rate = self._best_rate = self._highest()
        if self._num_rests > 0:
            self._num_rests -= 1
            return True
        return self._try()

    def _tried(self, accepted: float) -> bool:
        """Keeps the rate that was tried if it is better, and tries the next."""
        if accepted >= self._needed():
            self._best_rate, self.accepted = self.rate, accepted
            self._num_failed = 0
        elif self._best_rate == self.polite_rate:
            return False
        else:
            self._turn()
        return self._num_rests > 0 or self._try()

    def _turn(self) -> None:
        """Goes back to the best rate, and looks in the other direction next, or later if both directions failed."""
        self.rate = self._best_rate
        self._is_upwards = not self._is_upwards
        self._num_failed += 1
        if self._num_failed >= 2:
            self._num_failed, self._num_rests = 0, _REST_WINDOWS

    def _try(self) -> bool:
        if self._is_upwards:
            rate = min(_STEP * self._best_rate, self._highest())
            if rate >= _NEXT_STEP * self._best_rate:
                self.rate = rate
                return True
            self._turn()
            if self._num_rests > 0:
                return True
        rate = self._best_rate / _STEP
        if rate <= self.polite_rate:
            return False
        self.rate = rate
        return True

    def _needed(self) -> float:
        """Returns the accepted calls per second that make `rate` better than the best one."""
        more: float = (self.rate / self._best_rate) ** _LEAST_GAIN
        return max(self.accepted * more, self._least_accepted)

    def _highest(self) -> float:
        """Returns the rate of which the largest share is refused that may be."""
        return self.accepted / (1.0 - self._most_refused)


def weight_of_refusal(refused_share: float) -> float:
    """Returns how much one refusal counts against its request, where that share of all calls is refused.

    So many refusals in a row are as unlikely for a request without fault as they are usually.
    """
    return min(1.0, math.log(max(refused_share, _USUAL_SHARE)) / math.log(_USUAL_SHARE))
