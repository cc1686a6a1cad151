"""The governors of one account act together: a call takes from all of them when it starts, and settles with all."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Iterator

import pytest

from rewardflow import clock
from rewardflow.observe.events import BreakerChanged, EventList, LimitChanged
from rewardflow.reward.calls.attempt import Attempt
from rewardflow.reward.calls.deadlines import Deadlines
from rewardflow.reward.calls.faults import Fault
from rewardflow.reward.code.current_call import Call
from rewardflow.reward.groups.job import Job
from rewardflow.reward.limits.governors import Governors
from rewardflow.reward.limits.ledger import Ledger
from rewardflow.reward.settings import LimitSettings
from rewardflow.types import Rollout

ROLLOUT = Rollout(group_id="q", response="4", step=7)
UNAVAILABLE = Fault(kind="service", message="503", is_retryable=True)


class Account:
    """One account's governors, with its ledger and the events it emits. Calls start and end at given times."""

    def __init__(self, loop: asyncio.AbstractEventLoop, **limits: object) -> None:
        self.events = EventList()
        self.ledger = Ledger(cap_usd=10.0, call_cost_usd=0.5)
        self.governors = Governors("judge", LimitSettings(**limits), self.ledger, self.events)
        self._deadlines = Deadlines(loop)

    def start(self, now: float) -> Attempt:
        # A governor reads the job's rollouts and last endpoint; it never asks for its scorer or its group.
        job = Job(None, (ROLLOUT,), None, 0, contextvars.Context(), lambda job, rewards: None)
        attempt = Attempt(self._deadlines, job, False, now)
        attempt.call = Call((ROLLOUT,))
        attempt.was_made = True
        self.governors.start(attempt, 0)
        return attempt

    def call(self, now: float, outcome: str, fault: Fault | None = None) -> None:
        self.governors.settle(self.start(now), outcome, fault, 1, now + 0.1)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = clock.JumpingLoop()
    yield loop
    loop.close()


def test_failed_calls_open_the_breaker_and_an_event_reports_it_once(loop: asyncio.AbstractEventLoop) -> None:
    account = Account(loop, outage_window=4, max_concurrency=1)
    for number in range(4):
        account.call(float(number), "service", UNAVAILABLE)
    assert [event.state for event in account.events.of(BreakerChanged)] == ["open"]
    assert account.governors.outage_since_s() == pytest.approx(3.1)
    assert account.governors.why_waiting(3.1, 0) == "503"
    assert account.governors.ready_at(3.1, 0) > 3.1


def test_a_request_that_is_itself_at_fault_counts_as_an_answer(loop: asyncio.AbstractEventLoop) -> None:
    account = Account(loop, outage_window=4, max_concurrency=1)
    for number in range(8):
        account.call(float(number), "service", Fault(kind="service", message="400", is_about_request=True))
    assert account.governors.outage_since_s() is None


def test_refused_calls_slow_the_pace_and_an_event_reports_it(loop: asyncio.AbstractEventLoop) -> None:
    account = Account(loop, max_concurrency=1)
    for _ in range(6):
        account.call(1.0, "rate_limited", Fault(kind="rate_limited", message="429"))
    (changed,) = account.events.of(LimitChanged)
    assert (changed.governor, changed.reason) == ("pace", "rate_limited")
    assert account.governors.statistics(1.1).pace.rpm == changed.value


@pytest.mark.parametrize(("endpoints", "ready_at"), [(["a"], 31.1), (["a", "b"], 1.1)])
def test_a_retry_after_of_a_failed_call_stops_the_account_only_if_it_has_one_endpoint(
    loop: asyncio.AbstractEventLoop, endpoints: list[str], ready_at: float
) -> None:
    account = Account(loop, endpoints=endpoints)
    account.call(1.0, "service", Fault(kind="service", message="503", retry_after_s=30.0))
    assert account.governors.ready_at(1.1, 0) == pytest.approx(ready_at)


@pytest.mark.parametrize(
    ("outcome", "spent_usd", "uncertain_usd"),
    [
        ("scored", 0.5, 0.0),  # answered and nothing reported: the set price
        ("timeout", 0.0, 0.5),  # the service may charge for it
        ("service", 0.0, 0.5),  # a broken connection or a 500: the service may charge for it
        ("refused", 0.0, 0.0),  # a service that refused the request cannot charge for it
    ],
)
def test_a_call_that_reports_no_cost_is_paid_for_by_how_it_ended(
    loop: asyncio.AbstractEventLoop, outcome: str, spent_usd: float, uncertain_usd: float
) -> None:
    account = Account(loop)
    is_refused = outcome == "refused"
    kind = "service" if is_refused else outcome
    fault = None if outcome == "scored" else Fault(kind=kind, message=outcome, is_free=is_refused)
    account.call(1.0, kind, fault)
    money = account.ledger.statistics()
    assert (money.spent_usd, money.uncertain_usd, money.reserved_usd) == (spent_usd, uncertain_usd, 0.0)
    assert money.by_step_usd.get(7, 0.0) == spent_usd


def test_announced_limits_on_tokens_make_later_calls_count_tokens(loop: asyncio.AbstractEventLoop) -> None:
    account = Account(loop)
    assert not account.governors.counts_tokens
    attempt = account.start(1.0)
    attempt.call.headers = {"x-ratelimit-limit-tokens": "6000"}
    account.governors.settle(attempt, "scored", None, 1, 1.1)
    assert account.governors.counts_tokens
    assert account.governors.statistics(1.1).pace.tpm == 6000.0


@pytest.mark.parametrize(
    ("outcome", "uncertain_usd"),
    [
        ("scored", 0.0),
        ("unparsable", 0.0),
        ("cannot serve this request", 0.0),
        ("refused", 0.0),  # what was told is for the requests before the one that was refused
        ("timeout", 0.4),
        ("service", 0.4),
        ("cancelled", 0.4),
        ("user_error", 0.4),  # maybe raised by a client that nobody knows, while its request was on its way
    ],
)
def test_what_a_call_told_is_its_whole_cost_only_if_no_request_of_it_broke_off(
    loop: asyncio.AbstractEventLoop, outcome: str, uncertain_usd: float
) -> None:
    account = Account(loop)
    attempt = account.start(1.0)
    attempt.call.cost_usd, attempt.call.is_cost_known = 0.1, True
    is_refused, is_about_request = outcome == "refused", outcome == "cannot serve this request"
    kind = "service" if is_refused or is_about_request else outcome
    fault = Fault(kind=kind, message="", is_free=is_refused, is_about_request=is_about_request)
    has_fault = outcome not in ("scored", "unparsable", "cancelled")
    account.governors.settle(attempt, kind, fault if has_fault else None, 1, 1.1)
    money = account.ledger.statistics()
    assert (money.spent_usd, money.uncertain_usd) == (0.1, pytest.approx(uncertain_usd))


def test_a_refusal_after_a_request_that_told_tokens_but_no_cost_is_not_free(loop: asyncio.AbstractEventLoop) -> None:
    account = Account(loop)
    attempt = account.start(1.0)
    attempt.call.tokens = 800
    account.governors.settle(attempt, "rate_limited", Fault(kind="rate_limited", message="", is_free=True), 1, 1.1)
    assert account.ledger.statistics().uncertain_usd == 0.5
