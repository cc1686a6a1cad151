"""Chooses rates above the best estimate, to find a service's limit: sweeps and climbs.

Always true: the rate never falls while a sweep or a climb lasts; a climb stays near the estimate while
the service may have saved up allowance.

A sweep is a short run of calls that come faster and faster; the rate of the last call before the first refusal is the
service's rate. It measures a service without an allowance to save up (a burst of one). A service with a burst refuses
few calls of a sweep, or none.

A climb grows every few seconds. It spends the allowance that a service with a burst has saved up, and then finds the
limit, also a raised one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rewardflow.reward.limits.learning.refusals import Refusals

NARROW_SWEEP = 1.1  # the last rate by the first; a wider sweep would say little about a service with a small burst
NARROW_SWEEP_CALLS = 12  # half of them may be refused before the first refusal arrives
WIDE_SWEEP = 2.0  # the largest error of a count, as a factor
WIDE_SWEEP_CALLS = 24
_ROUNDING = 1e-6

LEAST_EXCESS = 0.01
MOST_FIRST_EXCESS = 0.10
_CLIMB_REFUSALS = 10  # refusals in flight when the first one arrives, if a climb begins right above the limit
_CLIMB_DOUBLING_S = 8.0  # or the time of this many echoes or calls, if that is longer
_CLIMB_ECHOES = 2.5
_CLIMB_CALLS = 40
_CLIMB_CALLS_S = 120.0  # the longest time to wait for these calls, for slow services
_SPENDING_EXCESS = 0.4  # the most that a climb adds while the service may have allowance saved up
_MOST_SAVED_S = 60.0  # limits are per minute, so no service saves up more


class SavedAllowance:
    """Counts the calls that the service may have saved up since it last refused one.

    Until they are spent, an accepted call proves nothing about a higher limit. The service saves up while we send a
    little below its rate, and in idle time.
    """

    __slots__ = ("_at", "_num_calls")

    def __init__(self) -> None:
        self._num_calls = 0.0
        self._at = 0.0

    @property
    def is_spent(self) -> bool:
        return self._num_calls <= 0.0

    def spend(self, now: float, rate: float) -> None:
        """Takes one call from the allowance of a service that accepts `rate` calls per second."""
        saved = self._num_calls + (now - self._at) * rate
        self._num_calls = min(saved, _MOST_SAVED_S * rate) - 1.0
        self._at = now

    def reset(self, now: float) -> None:
        """Records a refusal: a service that refuses has no allowance left."""
        self._num_calls, self._at = 0.0, now


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSweep:
    """Calls that come faster and faster, from `first_rate` to `last_rate`."""

    refusals: Refusals  # of the calls of the sweep
    first_rate: float
    last_rate: float
    growth: float  # of the rate, from call to call

    @classmethod
    def plan(cls, refusals: Refusals, first_rate: float, span: float, num_calls: int) -> RateSweep:
        """Plans a sweep of `num_calls` calls; the last rate is `span` times the first."""
        growth = span ** (1.0 / num_calls)
        return cls(refusals=refusals, first_rate=first_rate, last_rate=first_rate * span, growth=growth)

    def is_over(self, rate: float) -> bool:
        return rate > (1.0 + _ROUNDING) * self.last_rate

    def measured_rate(self) -> float:
        """Returns the rate of the last call before the slowest refused one."""
        return max(self.first_rate, self.refusals.lowest_rate / self.growth)


@dataclass(frozen=True, slots=True)
class RateClimb:
    """A rate above the best estimate: `excess` is the share by which it is higher."""

    excess: float
    step: float = 0.0  # the least excess after the first growth; not 0 only after a rough count

    @classmethod
    def after_sweep(cls, estimate: float, echo_s: float) -> RateClimb:
        """Plans a climb that begins so low that few refusals are in flight when the first one arrives."""
        in_flight = max(echo_s * estimate, 1.0)
        return cls(min(max(_CLIMB_REFUSALS / in_flight, LEAST_EXCESS), MOST_FIRST_EXCESS))

    def rate(self, estimate: float) -> float:
        return estimate * (1.0 + self.excess)

    def grown(self, saved: SavedAllowance) -> RateClimb:
        """Returns a higher climb, but not much higher until the service must have spent its saved-up allowance.

        Before that, a rate without refusals does not prove a higher limit.
        """
        excess = max(2.0 * self.excess, self.step)
        if not saved.is_spent:
            excess = min(excess, max(self.excess, _SPENDING_EXCESS))
        return replace(self, excess=excess)

    def growth_after_s(self, estimate: float, echo_s: float) -> float:
        """Returns how long to send without a refusal before the climb grows."""
        # Right above the limit, one call in 1 / excess is refused; wait for twice as many calls.
        num_calls = max(_CLIMB_CALLS, 2.0 / (self.excess + self.step)) if self.step else _CLIMB_CALLS
        calls_s = min(num_calls / estimate, _CLIMB_CALLS_S)
        return max(_CLIMB_DOUBLING_S, _CLIMB_ECHOES * echo_s, calls_s)
