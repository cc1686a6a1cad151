"""Says when the next call may start, by requests and tokens a minute.

Always true: with a set rate no two calls start closer together than it allows; nothing starts before a Retry-After
has passed, as far as it is believed (`surprising_numbers`); `ready_at` is never infinite, so no call waits for ever.
The state machine never waits itself: the caller passes `now` and sleeps until the time it gets back.

rpm: a number is kept exactly; "auto" is unlimited until the service refuses a call or announces a limit, and then
learnt (see `learnt_rate`); None never limits.
tpm: a number makes a token bucket; "auto" learns from headers only, because a 429 does not say which limit was reached,
and the learnt request rate covers both; None never limits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rewardflow.errors import InvalidInput
from rewardflow.reward.limits.learning.learnt_rate import LearntRate
from rewardflow.reward.limits.learning.refusals import Refusals
from rewardflow.reward.limits.rate_limit_headers import read_limits
from rewardflow.reward.limits.surprising_numbers import AnnouncedLimit, AskedWaits, UsualTokens
from rewardflow.reward.settings import MAX_REFUSED

# Timers may wake a loop late by up to this much. Rates with shorter intervals may catch up. Slower rates do not: they
# lose little, and a service without a burst would refuse a call that catches up.
_WAKE_UP_S = 0.020
_TOKEN_BURST_S = 6.0
_TOKEN_ROUNDING = 1e-6


class Start:
    """The record of a call that started; the caller passes it back to `Pace` when the call ends."""

    __slots__ = ("at", "index", "interval_s", "refusal_weight", "refusals", "tokens")

    def __init__(
        self, at: float, tokens: int, interval_s: float, refusals: Refusals, index: int, refusal_weight: float
    ) -> None:
        self.at = at
        self.refusal_weight = refusal_weight  # how much a 429 counts against the request
        self.interval_s = interval_s
        self.tokens = tokens
        self.refusals = refusals
        self.index = index


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceStatistics:
    rpm: float | None  # that are accepted
    pressed_share: float  # of the calls, refused because they are sent faster than a limit without a burst accepts
    tpm: float | None
    num_limited: int
    state: str
    stopped_for_s: float
    history: tuple[tuple[float, float, str], ...]


class TokenBudget:
    """A bucket of tokens that refills evenly and may go into debt.

    It holds only a few seconds' worth, so that the first minute spends no more than any other. A call larger than the
    bucket starts when the bucket is full; the next calls wait until its debt is refilled.
    """

    __slots__ = ("_at", "_level", "_per_s", "capacity", "tpm")

    def __init__(self, tpm: float) -> None:
        self._level = math.inf  # full at any capacity
        self._at = 0.0
        self.allow(tpm)

    def allow(self, tpm: float) -> None:
        self.tpm = tpm
        self._per_s = tpm / 60.0
        self.capacity = self._per_s * _TOKEN_BURST_S

    def ready_at(self, now: float, tokens: int) -> float:
        self._refill(now)
        missing = (tokens if tokens < self.capacity else self.capacity) - self._level
        return now + missing / self._per_s if missing > _TOKEN_ROUNDING else now

    def spend(self, now: float, tokens: float) -> None:
        """Takes tokens out of the bucket; a negative number puts them back."""
        self._refill(now)
        self._level -= tokens

    def _refill(self, now: float) -> None:
        self._level = min(self.capacity, self._level + (now - self._at) * self._per_s)
        self._at = now


class Pace:
    """The pace of one service account: requests and tokens a minute, set or learnt."""

    def __init__(
        self,
        rpm: float | Literal["auto"] | None = "auto",
        tpm: float | Literal["auto"] | None = "auto",
        max_refused: float = MAX_REFUSED,
    ) -> None:
        for name, value in (("rpm", rpm), ("tpm", tpm)):
            if value is not None and value != "auto" and not value > 0:
                raise InvalidInput(f'{name} must be positive, "auto" or None, got {value!r}')
        self._learnt = LearntRate(max_refused) if rpm == "auto" else None
        self._learns_tokens = tpm == "auto"
        self._budget = None if tpm is None or tpm == "auto" else TokenBudget(tpm)
        self._interval_s = 0.0 if rpm is None or rpm == "auto" else 60.0 / rpm
        self._next_at = -math.inf
        self._started_at = -math.inf  # the last call at a learnt rate
        self._stopped_until = -math.inf
        self._refusals = Refusals() if self._learnt is None else self._learnt.current
        self._usual_tokens = UsualTokens()
        self._most_tokens = 0  # of one call
        self._num_limited = 0
        self._announced_rpm = AnnouncedLimit("requests")
        self._announced_tpm = AnnouncedLimit("tokens")
        self._asked_waits = AskedWaits()

    @property
    def rpm(self) -> float | None:
        """Requests a minute that the service accepts, set or learnt; None while nothing limits them."""
        if self._interval_s == 0.0:
            return None
        accepted_rate = None if self._learnt is None else self._learnt.accepted_rate
        return 60.0 / self._interval_s if accepted_rate is None else 60.0 * accepted_rate

    @property
    def tpm(self) -> float | None:
        """Tokens a minute now; None while nothing limits them."""
        return self._budget.tpm if self._budget is not None else None

    def ready_at(self, now: float, tokens: int = 0) -> float:
        """Returns the earliest time to ask again; at most `now` when a call of about `tokens` may start at once."""
        at = self._next_at
        if self._stopped_until > at:
            at = self._stopped_until
        if self._budget is not None:
            at = max(at, self._budget.ready_at(now, tokens))
        return at

    def why_waiting(self, now: float, tokens: int = 0) -> str:
        """Says what the next call waits for, for messages about long waits."""
        tokens_at = now if self._budget is None else self._budget.ready_at(now, tokens)
        if self._budget is not None and tokens_at >= max(self._stopped_until, self._next_at):
            return (
                f"{self._budget.tpm:g} tokens a minute allow the next call in {tokens_at - now:.0f} s, "
                f"after a call that used {self._most_tokens:,} tokens"
            )
        if self._stopped_until >= self._next_at:
            return f"the service asked to wait, for another {max(0.0, self._stopped_until - now):.0f} s (Retry-After)"
        return f"{self.rpm:g} requests a minute allow the next call in {self._next_at - now:.0f} s"

    def start(self, now: float, tokens: int = 0) -> Start:
        """Records that a call starts now and reserves `tokens`.

        When the call ends, pass the result to `succeeded`, `limited` or `abandoned`.
        """
        interval_s, refusals = self._interval_s, self._refusals  # as the call is sent; `_space` may change both
        refusal_weight = 1.0
        if interval_s > 0.0:
            if self._learnt is not None:
                refusal_weight = self._learnt.refusal_weight(now - self._started_at, now)
                self._started_at = now
            self._space(now)
            if self._refusals is not refusals:  # a new measurement begins behind this call
                self._refusals.num_before += 1
        if self._budget is not None:
            self._budget.spend(now, tokens)
        refusals.num_sent += 1
        return Start(now, tokens, interval_s, refusals, refusals.num_sent, refusal_weight)

    def succeeded(self, start: Start, now: float, tokens_used: int = 0) -> None:
        """Records an answered call. `tokens_used` is what the service reported; 0: no report, keep the reservation."""
        if self._asked_waits.wants_accepted:
            self._asked_waits.accepted(start.at)
        self._announced_rpm.accepted(1.0, now)
        if tokens_used or start.tokens:
            self._announced_tpm.accepted(tokens_used or start.tokens, now)
        if tokens_used <= 0:
            return
        if self._budget is not None:
            used = min(float(tokens_used), self._usual_tokens.most(start.tokens, self._budget.tpm))
            self._most_tokens = max(self._most_tokens, round(used))
            self._budget.spend(now, used - start.tokens)
        self._usual_tokens.add(tokens_used)

    def limited(self, start: Start, now: float, retry_after_s: float | None = None) -> None:
        """Records a call that was answered 429; its reserved tokens were not used."""
        self._num_limited += 1
        if self._budget is not None:
            self._budget.spend(now, -start.tokens)
        if self._learnt is not None:
            sent_rate = 1.0 / start.interval_s if start.interval_s > 0.0 else math.inf
            self._learnt.refused(start.refusals, start.at, start.index, sent_rate, now)
            self._follow(now)
        if retry_after_s is not None and 0.0 < retry_after_s < math.inf:
            self._stop(now, now + retry_after_s)

    def believed_wait_s(self, retry_after_s: float, now: float) -> float:
        """Returns how much of a Retry-After to wait; pass it to `limited` or `pause`. See `surprising_numbers`."""
        return self._asked_waits.believe(retry_after_s, now)

    def pause(self, now: float, seconds: float) -> None:
        """Starts nothing for this long, because the service asked for time."""
        if 0.0 < seconds < math.inf:
            self._stopped_until = max(self._stopped_until, now + seconds)

    def abandoned(self, start: Start, now: float) -> None:
        """Records a call without an answer. The service may have done the work, so its tokens are not put back."""

    def learn_headers(self, headers: Mapping[str, str], now: float) -> None:
        """Takes announced limits as a hint that later 429s overrule. Limits that the user set do not change."""
        if not headers or (self._learnt is None and not self._learns_tokens):
            return
        limits = read_limits(headers)
        if limits.rpm is not None and self._learnt is not None:
            rpm = self._announced_rpm.believe(limits.rpm)
            if rpm is not None:
                self._learnt.hint(rpm / 60.0, now)
                self._follow(now)
        if limits.tpm is not None and self._learns_tokens:
            tpm = self._announced_tpm.believe(limits.tpm)
            if tpm is not None:
                self._budget = self._budget or TokenBudget(tpm)
                self._budget.allow(tpm)

    def estimate_tokens(self) -> int:
        """Returns the running mean of reported usage; 0 before any report."""
        return round(self._usual_tokens.mean)

    def statistics(self, now: float) -> PaceStatistics:
        if self._learnt is not None:
            state, history = str(self._learnt.state), tuple(self._learnt.history)
        else:
            state, history = "set" if self._interval_s > 0.0 else "unlimited", ()
        return PaceStatistics(
            rpm=self.rpm,
            pressed_share=0.0 if self._learnt is None else self._learnt.pressed_share,
            tpm=self.tpm,
            num_limited=self._num_limited,
            state=state,
            stopped_for_s=max(0.0, self._stopped_until - now),
            history=history,
        )

    def _stop(self, now: float, until: float) -> None:
        if until <= self._stopped_until:
            return
        if self._learnt is not None:
            self._learnt.stopped(until - max(self._stopped_until, now), now)
            self._follow(now)
        self._stopped_until = until

    def _space(self, now: float) -> None:
        """Plans when the next call may start."""
        interval_s = self._interval_s
        slack_s = 0.0 if interval_s >= _WAKE_UP_S else _WAKE_UP_S
        due_at = max(self._next_at, now - slack_s)
        if self._learnt is not None:
            is_prompt = now - max(self._next_at, self._stopped_until) <= max(interval_s, 2.0 * _WAKE_UP_S)
            self._learnt.sent(now, interval_s if is_prompt else 0.0)
            self._follow(now)
        self._next_at = due_at + self._interval_s

    def _follow(self, now: float) -> None:
        """Takes over the learnt rate."""
        assert self._learnt is not None
        self._refusals = self._learnt.current
        if self._learnt.rate is None:
            self._interval_s, self._next_at = 0.0, -math.inf
            return
        interval_s = 1.0 / self._learnt.rate
        if interval_s != self._interval_s:
            last_at = self._next_at - self._interval_s if self._interval_s > 0.0 else now
            self._next_at = max(last_at, now - interval_s) + interval_s
            self._interval_s = interval_s
