"""Combines the governors of one account: they say when the next call may start, and learn from how each call ended.

Always true: an attempt takes what it holds (an endpoint, a place in the pace, a share of the budget) when it starts,
and settles it once, when it ends.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from rewardflow.observe.events import BreakerChanged, EventSink, LimitChanged
from rewardflow.reward.calls.attempt import Attempt
from rewardflow.reward.calls.faults import Fault
from rewardflow.reward.code.current_call import Call
from rewardflow.reward.limits.concurrency import Concurrency, ConcurrencyStatistics
from rewardflow.reward.limits.endpoints import Endpoint, Endpoints, EndpointStatistics
from rewardflow.reward.limits.ledger import Ledger
from rewardflow.reward.limits.pace import Pace, PaceStatistics
from rewardflow.reward.limits.run_ledgers import RunLedgers
from rewardflow.reward.settings import LimitSettings

logger = logging.getLogger(__name__)

_ANSWERED = ("scored", "unparsable")  # by their contract such calls have told all that they cost, if they told any
_WITHOUT_ANSWER = ("timeout", "cancelled", "service", "rate_limited")


@dataclass(frozen=True, slots=True)
class GovernorStatistics:
    concurrency: ConcurrencyStatistics
    pace: PaceStatistics
    endpoints: tuple[EndpointStatistics, ...]


class Governors:
    """The pace, the concurrency, the endpoints and the budget of one account; each call uses all of them."""

    def __init__(
        self,
        account: str,
        limits: LimitSettings,
        ledger: Ledger,
        sink: EventSink | None,
        run_ledgers: RunLedgers | None = None,
    ) -> None:
        self._account = account
        self._ledger = ledger
        self._run_ledgers = run_ledgers
        self._sink = sink
        self._concurrency = Concurrency(limits.max_concurrency)
        self._pace = Pace(limits.rpm, limits.tpm, limits.max_refused)
        self._endpoints = Endpoints(limits.endpoints, window=limits.outage_window, share=limits.outage_share)
        self._reported_limit = self._concurrency.limit
        self._reported_rpm = self._pace.rpm
        self.counts_tokens = self._pace.tpm is not None  # learnt from headers, if not set

    @property
    def limit(self) -> int:
        return self._concurrency.limit

    def usual_tokens(self) -> int:
        return self._pace.estimate_tokens()

    def ready_at(self, now: float, tokens: int) -> float:
        return max(self._endpoints.ready_at(now), self._pace.ready_at(now, tokens))

    def outage_since_s(self) -> float | None:
        return self._endpoints.outage_since_s()

    def is_probe_due(self, now: float) -> bool:
        return self._endpoints.is_probe_due(now)

    def why_waiting(self, now: float, tokens: int) -> str:
        """Says why no call may start now: the last failure of broken endpoints, or what the pace waits for."""
        failure = self._endpoints.last_failure()
        if failure is not None and self._endpoints.ready_at(now) >= self._pace.ready_at(now, tokens):
            return failure
        waiting = self._pace.why_waiting(now, tokens)
        return f"{failure}; {waiting}" if failure is not None else waiting

    def start(self, attempt: Attempt, tokens: int, bound_usd: float | None = None) -> None:
        """Records that a call starts now, and notes in `attempt` what it holds."""
        now = attempt.started_s
        attempt.sent = self._pace.start(now, tokens)
        attempt.endpoint = self._endpoints.start(now, attempt.job.endpoint)
        attempt.reserved_usd = self._ledger.start(self._account, bound_usd)
        if self._run_ledgers is not None:
            run_ledger = self._run_ledgers.of(attempt.job.group.ticket.run)
            attempt.run_reserved_usd = run_ledger.start(self._account, self._price_usd(bound_usd))

    def run_over_cap(self, run: str, bound_usd: float | None) -> str | None:
        """Says why a call of the run does not fit under the run's cap now, or returns None."""
        run_ledger = None if self._run_ledgers is None else self._run_ledgers.capped(run)
        if self._run_ledgers is None or run_ledger is None:
            return None
        price_usd = self._price_usd(bound_usd)
        if run_ledger.may_start(self._account, price_usd):
            return None
        return self._run_ledgers.over_cap(run, run_ledger.next_price_usd(self._account, price_usd))

    def _price_usd(self, bound_usd: float | None) -> float | None:
        """Returns what a call reserves of its run's money: the price in the settings, or else the reward's bound."""
        fixed_usd = self._ledger.assumed_cost_usd()
        return bound_usd if fixed_usd is None else fixed_usd

    def settle(self, attempt: Attempt, outcome: str, fault: Fault | None, in_flight: int, now: float) -> bool:
        """Tells every governor how a call ended: `scored`, a failure kind, or `cancelled` if its caller gave it up.

        Returns whether the service answered.
        """
        endpoint, breaker = attempt.endpoint, attempt.endpoint.breaker
        self._settle_money(attempt, outcome, fault)
        endpoint.in_flight -= 1
        was_open = breaker.is_open
        is_answered = outcome in _ANSWERED or (fault is not None and fault.is_about_request)
        if fault is not None and fault.retry_after_s is not None:
            attempt.retry_after_s = self._pace.believed_wait_s(fault.retry_after_s, now)
        if is_answered:
            self._pace.succeeded(attempt.sent, now, attempt.call.tokens)
            self._concurrency.succeeded(now, now - attempt.started_s, in_flight)
            breaker.succeeded(now, attempt.started_s)
        elif fault is not None and outcome == "rate_limited":
            self._pace.limited(attempt.sent, now, attempt.retry_after_s)
            breaker.rejected(now, fault.message)
        elif fault is not None and outcome in ("timeout", "service"):
            self._pace.abandoned(attempt.sent, now)
            if was_open or not attempt.job.is_suspect:
                self._concurrency.overloaded(now, in_flight)
                breaker.failed(now, fault.message, is_silence=outcome == "timeout")
            if attempt.retry_after_s is not None and self._endpoints.is_single:
                self._pace.pause(now, attempt.retry_after_s)
        else:
            self._pace.abandoned(attempt.sent, now)
            breaker.abandoned(now)
        headers = attempt.call.headers if fault is None else fault.headers
        if headers:
            self._pace.learn_headers(headers, now)
            self.counts_tokens = self._pace.tpm is not None
        if breaker.is_open != was_open:
            self._report_breaker(endpoint, now)
        if self._concurrency.limit != self._reported_limit or self._pace.rpm != self._reported_rpm:
            self._report_limits(outcome, now)
        return is_answered

    def stop_endpoint(self, endpoint: Endpoint, now: float) -> bool:
        """Opens the breaker of the only endpoint, which seems to be down; returns whether it did.

        With several, one that stays closed would keep the outage from being noticed while the others excuse failures.
        """
        has_opened = self._endpoints.is_single and endpoint.breaker.open_early(now)
        if has_opened:
            self._report_breaker(endpoint, now)
        return has_opened

    def _settle_money(self, attempt: Attempt, outcome: str, fault: Fault | None) -> None:
        """Counts what the call cost. One that may have cost more than it told counts as its reservation."""
        ledger, call = self._ledger, attempt.call
        if call.cached_tokens:
            ledger.count_cached(call.cached_tokens, call.cache_saved_usd)
        run_ledgers = self._run_ledgers
        run_ledger = None if run_ledgers is None else run_ledgers.of(attempt.job.group.ticket.run)
        is_capped = ledger.cap_usd is not None or (run_ledger is not None and run_ledger.cap_usd is not None)
        if not is_capped and not (attempt.reserved_usd or call.cost_usd or call.tokens):
            ledger.settle_nothing(self._account)
            if run_ledger is not None:
                run_ledger.settle_nothing(self._account)
            return
        is_told = _is_whole_cost_told(call, outcome, fault)
        is_free = not attempt.was_made or attempt.job.cost_bound_usd == 0 or _is_refused(call, fault)
        is_uncertain = not is_told and not is_free
        if is_uncertain and not call.cost_usd and outcome not in _WITHOUT_ANSWER:
            assumed_usd = ledger.assumed_cost_usd()
            if assumed_usd is not None:
                call.cost_usd = assumed_usd
                is_uncertain = False
        ledgers = [(ledger, attempt.reserved_usd)]
        if run_ledger is not None:
            ledgers.append((run_ledger, attempt.run_reserved_usd))
        for one, reserved_usd in ledgers:
            one.settle(
                self._account,
                reserved_usd,
                attempt.job.rollouts[0].step,
                call.cost_usd,
                call.tokens,
                is_told=is_told,
                is_uncertain=is_uncertain,
            )
        if run_ledgers is not None:
            run_ledgers.call_ended(attempt.job.group.ticket.run)

    def statistics(self, now: float) -> GovernorStatistics:
        return GovernorStatistics(
            self._concurrency.statistics(), self._pace.statistics(now), self._endpoints.statistics()
        )

    def _report_breaker(self, endpoint: Endpoint, now: float) -> None:
        state = "open" if endpoint.breaker.is_open else "closed"
        name = endpoint.shown or "the only endpoint"
        reason = endpoint.breaker.statistics().last_failure
        logger.warning("%s: the breaker of %s is now %s; last failure: %s", self._account, name, state, reason)
        if self._sink is not None:
            self._sink.emit(BreakerChanged(at_s=now, account=self._account, endpoint=endpoint.shown, state=state))

    def _report_limits(self, reason: str, now: float) -> None:
        limit, rpm = self._concurrency.limit, self._pace.rpm
        if self._sink is not None:
            if limit != self._reported_limit:
                self._sink.emit(
                    LimitChanged(
                        at_s=now, account=self._account, governor="concurrency", value=float(limit), reason=reason
                    )
                )
            if rpm != self._reported_rpm:
                self._sink.emit(
                    LimitChanged(at_s=now, account=self._account, governor="pace", value=rpm, reason=reason)
                )
        self._reported_limit, self._reported_rpm = limit, rpm


def _is_whole_cost_told(call: Call, outcome: str, fault: Fault | None) -> bool:
    """Whether the call cost what it told, and no more.

    A call may send several requests. One that broke off after it told the cost of some may have been charged for
    another that was on its way; only a refusal says that its last request cost nothing.
    """
    is_any_told = call.is_cost_known or call.cost_usd > 0
    is_ended = outcome in _ANSWERED or (fault is not None and (fault.is_about_request or fault.is_free))
    return is_any_told and not call.num_unpriced and is_ended


def _is_refused(call: Call, fault: Fault | None) -> bool:
    """Whether the service refused the only request of the call, as far as the call shows.

    Tokens that were told without a cost are those of an earlier request, whose cost is unknown.
    """
    return fault is not None and fault.is_free and not call.num_unpriced and not call.tokens
