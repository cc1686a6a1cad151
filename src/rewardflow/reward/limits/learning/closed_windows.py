"""Notices that a service was closed for a while, and tells how many calls a second it accepts in the long run.

Always true: a service counts as closed only if it accepted calls one after another, and then refused every call for
longer than a limit at that rate does.

A service that counts calls in windows accepts them as they come until the window is full, and then refuses everything
until the next one begins. A count between two of these refusals says that it accepts nothing. But from one opening to
the next it accepted what its limit allows, however fast the calls came. A client that sends evenly at that rate never
fills a window.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, replace

_LEAST_REFUSED = 6  # one after another
_LEAST_MISSED = 10  # calls that a limit at the rate so far would have accepted meanwhile
_LEAST_CLOSED_S = 5.0  # while no rate is known: only a very slow limit accepts nothing for so long
_LEAST_CALM = 20  # accepted calls before; a service that often refuses some is not closed
_MOST_CALM = 1000
_CALM_OF_RUN = 4  # accepted calls that one run of refusals outweighs: calls cross each other as a window closes
_MOST_CLOSED_S = 75.0  # limits are per minute: what refuses for longer has another reason
_IDLE_S = 5.0  # without a call


@dataclass(frozen=True, slots=True)
class Opening:
    """The service accepts calls again. `rate` is how many a second it accepts in the long run, if that is known."""

    rate: float | None


@dataclass(frozen=True, slots=True)
class _Moment:
    """A time, and the calls that were accepted before it."""

    at: float
    num_accepted: int

    def rate_until(self, later: _Moment) -> float:
        elapsed_s = later.at - self.at
        return (later.num_accepted - self.num_accepted) / elapsed_s if elapsed_s > 0.0 else math.inf


@dataclass(frozen=True, slots=True)
class _Closure:
    """A run of refusals, with no accepted call between them."""

    began: _Moment
    calm: float  # accepted calls before, less some for each earlier run
    opened: _Moment | None  # when the service had opened last
    num_refused: int = 0
    last_s: float = 0.0  # when the last refused call was sent

    def is_sure(self) -> bool:
        if self.num_refused < _LEAST_REFUSED or self.calm < _LEAST_CALM:
            return False
        closed_s = self.last_s - self.began.at
        if self.opened is None:
            return closed_s >= _LEAST_CLOSED_S
        return closed_s * self.opened.rate_until(self.began) >= _LEAST_MISSED


class ClosedWindows:
    """Watches refusals in the order in which their calls were sent, whatever the rate."""

    __slots__ = ("_before", "_closure", "_num_refused", "_opened", "_probe", "_rate", "_sent_s", "_young")

    def __init__(self) -> None:
        self._young: list[tuple[int, float]] = []  # a heap of refusals that are too young to count
        self._num_refused = 0
        self._closure = _Closure(_Moment(0.0, 0), 0.0, None)
        self._opened: _Moment | None = None  # the last time
        self._before: tuple[_Closure, _Moment] | None = None  # the closure that ended then, and that moment
        self._rate: float | None = None
        self._probe: tuple[int, float] | None = None  # the first call after the last refused one
        self._sent_s = math.inf

    def refused(self, number: int, sent_at: float, settled_before: float) -> None:
        """Records that call `number` was refused; all refusals of calls that were sent before then have arrived."""
        heapq.heappush(self._young, (number, sent_at))
        if self._probe is not None and number >= self._probe[0]:
            self._probe = None
        while self._young and self._young[0][1] <= settled_before:
            self._count(*heapq.heappop(self._young))

    def is_closed(self, now: float) -> bool:
        """Whether the service refuses every call now, and not for longer than a window lasts."""
        return self._closure.is_sure() and now - self._closure.began.at <= _MOST_CLOSED_S

    def sent(self, number: int, now: float, listen_s: float) -> Opening | None:
        """Records that call `number` starts; returns an `Opening` if a closed service has accepted an earlier one.

        A call is accepted if it was not refused within `listen_s`.
        """
        if now - self._sent_s > _IDLE_S:
            self._opened = None
        self._sent_s = now
        if not self._closure.is_sure():
            return None
        if self._probe is None:
            self._probe = (number, now)
        number, at = self._probe
        return None if now - at <= listen_s else self._open(_Moment(at, number - 1 - self._num_refused))

    def _open(self, now: _Moment) -> Opening:
        if self._opened is not None and now.num_accepted > self._opened.num_accepted and now.at > self._opened.at:
            self._rate = self._opened.rate_until(now)
        self._before, self._opened, self._probe = (self._closure, now), now, None
        self._closure = _Closure(now, 0.0, now)
        return Opening(self._rate)

    def _count(self, number: int, sent_at: float) -> None:
        now = _Moment(sent_at, number - 1 - self._num_refused)
        self._num_refused += 1
        closure = self._closure
        num_accepted = now.num_accepted - closure.began.num_accepted
        if num_accepted > 0 and not self._closes_again(now):
            calm = max(0.0, closure.calm - _CALM_OF_RUN) + num_accepted
            self._closure = _Closure(now, min(calm, _MOST_CALM), self._opened)
        elif num_accepted < 0:  # a late refusal: a call that seemed to be accepted was not
            began = replace(closure.began, num_accepted=now.num_accepted)
            self._closure = replace(closure, began=began, calm=max(0.0, closure.calm + num_accepted))
        self._closure = replace(self._closure, num_refused=self._closure.num_refused + 1, last_s=sent_at)

    def _closes_again(self, now: _Moment) -> bool:
        """Takes back an opening that let few calls through, as sliding windows do; says whether it did."""
        if self._before is None:
            return False
        closure, opened = self._before
        if now.num_accepted - opened.num_accepted >= _LEAST_CALM or now.at - closure.began.at > _MOST_CLOSED_S:
            self._before = None
            return False
        began = _Moment(closure.began.at, now.num_accepted)
        self._closure, self._opened = replace(closure, began=began), closure.opened
        return True
