"""The totals of a step count each of its events once."""

from __future__ import annotations

import dataclasses
import json
import math

from hypothesis import given
from hypothesis import strategies as st

from rewardflow.observe.events import (
    BreakerChanged,
    CallEnded,
    GroupDelivered,
    LimitChanged,
    OutageChanged,
    VerdictReached,
)
from rewardflow.observe.histogram import Histogram
from rewardflow.observe.step_totals import AccountTotals, StepTotals
from rewardflow.types import EMPTY, FailureKind


def call(*, attempt: int = 1, is_hedge: bool = False, outcome: str = "scored") -> CallEnded:
    return CallEnded(
        at_s=2.0,
        step=3,
        group_id="q",
        index=0,
        reward="judge",
        attempt=attempt,
        started_s=1.0,
        latency_s=1.0,
        outcome=outcome,
        cost_usd=0.25,
        tokens=100,
        is_hedge=is_hedge,
    )


def scored(value: float, components: dict[str, float | None] | None = None, *, cached: bool = False) -> VerdictReached:
    return VerdictReached(
        at_s=2.0,
        step=3,
        group_id="q",
        index=0,
        status="scored",
        value=value,
        attempts=1,
        latency_s=4.0,
        waited_s=1.0,
        cached=cached,
        components=EMPTY if components is None else components,
    )


def failed(kind: FailureKind) -> VerdictReached:
    return VerdictReached(at_s=2.0, step=3, group_id="q", index=0, status="failed", kind=kind, latency_s=9.0)


def group(at_s: float, first_submitted_s: float) -> GroupDelivered:
    return GroupDelivered(
        at_s=at_s, step=3, group_id="q", num_rollouts=8, num_failed=0, first_submitted_s=first_submitted_s
    )


def test_a_step_that_nothing_happened_in_is_all_zeros_and_nulls() -> None:
    data = StepTotals(3).to_json()
    assert (data["v"], data["step"], data["source"]) == (1, 3, "reward")
    assert (data["rollouts"], data["calls"], data["failed"], data["score"]["mean"]) == (0, 0, {}, None)
    assert (data["first_submitted_s"], data["last_delivered_s"]) == (None, None)


def test_every_call_is_paid_for_and_retries_are_not_hedges() -> None:
    totals = StepTotals(3)
    for event in [call(), call(attempt=2, outcome="timeout"), call(attempt=3), call(attempt=2, is_hedge=True)]:
        totals.call_ended(event)
    assert (totals.calls, totals.retries, totals.hedges) == (4, 2, 1)
    assert (totals.cost_usd, totals.tokens) == (1.0, 400)


def test_failures_are_counted_by_kind_and_never_enter_the_score() -> None:
    totals = StepTotals(3)
    for event in [scored(1.0), scored(-3.0), failed("timeout"), failed("timeout"), failed("budget")]:
        totals.verdict(event)
    assert (totals.rollouts, totals.scored) == (5, 2)
    assert totals.failed == {"timeout": 2, "budget": 1}
    assert totals.to_json()["score"] == {"count": 2, "sum": -2.0, "min": -3.0, "max": 1.0, "mean": -1.0}


def test_components_are_summed_by_name_where_they_have_a_value() -> None:
    totals = StepTotals(3)
    totals.verdict(scored(1.0, {"style": 0.5, "fact": None}))
    totals.verdict(scored(1.0, {"style": 1.0, "length": math.nan}))
    components = totals.to_json()["components"]
    assert list(components) == ["style"]
    assert (components["style"]["count"], components["style"]["mean"]) == (2, 0.75)


def test_cached_verdicts_count_but_their_times_do_not() -> None:
    totals = StepTotals(3)
    totals.verdict(scored(1.0))
    totals.verdict(scored(1.0, cached=True))
    assert (totals.rollouts, totals.cached) == (2, 1)
    assert (totals.latency_s.count, totals.waited_s.count) == (1, 1)


def test_an_impossible_time_is_left_out_and_its_verdict_still_counts() -> None:
    totals = StepTotals(3)
    for latency_s in (math.nan, -1.0, 2.0):
        totals.verdict(dataclasses.replace(scored(1.0), latency_s=latency_s))
    assert (totals.rollouts, totals.latency_s.count, totals.waited_s.count) == (3, 1, 3)


def test_a_step_lasts_from_its_first_rollout_to_its_last_group_in_any_order() -> None:
    totals = StepTotals(3)
    for event in [group(at_s=7.0, first_submitted_s=0.5), group(at_s=5.0, first_submitted_s=0.0), group(6.0, 1.0)]:
        totals.group(event)
    assert totals.groups == 3
    assert (totals.first_submitted_s, totals.first_delivered_s, totals.last_delivered_s) == (0.0, 5.0, 7.0)


@given(values=st.lists(st.floats(min_value=-1e6, max_value=1e6)))
def test_totals_are_json_from_which_a_reader_gets_its_histograms_back(values: list[float]) -> None:
    totals = StepTotals(3, source="trainer")
    for value in values:
        totals.verdict(scored(value))
    data = json.loads(json.dumps(totals.to_json(), allow_nan=False))
    assert data == totals.to_json()
    assert Histogram.from_json(data["latency_s"]) == totals.latency_s


def test_a_verdict_that_needed_no_call_counts_but_says_nothing_about_the_service() -> None:
    totals = StepTotals(3)
    totals.verdict(dataclasses.replace(scored(1.0), attempts=0, latency_s=0.0))
    assert (totals.scored, totals.latency_s.count, totals.cached) == (1, 0, 0)


def test_calls_are_counted_by_outcome_and_by_when_they_were_in_flight() -> None:
    totals = StepTotals(3)
    for event in [call(), call(outcome="rate_limited"), call(outcome="rate_limited", attempt=2)]:
        totals.call_ended(event)
    data = totals.to_json()
    assert data["outcomes"] == {"scored": 1, "rate_limited": 2}
    assert sum(data["in_flight"]["calls"]) * data["in_flight"]["width_s"] == 3.0
    later = StepTotals(3)
    later.carry_over(data)
    later.call_ended(call())
    assert later.to_json()["outcomes"] == {"scored": 2, "rate_limited": 2}


# -- limits and breakers --


def limit(value: float | None) -> LimitChanged:
    return LimitChanged(at_s=1.0, account="judge", governor="pace", value=value, reason="rate_limited")


def test_a_limit_keeps_its_extremes_and_its_last_value() -> None:
    totals = AccountTotals()
    for value in (600.0, 300.0, None, 450.0):
        totals.changed(limit(value))
    assert totals.to_json()["limits"] == {"pace": {"changes": 4, "min": 300.0, "max": 600.0, "last": 450.0}}


def test_breakers_are_counted_when_they_open_and_keep_their_last_state() -> None:
    totals = AccountTotals()
    for endpoint, state in [("a", "open"), ("b", "open"), ("a", "closed"), (None, "open")]:
        totals.changed(BreakerChanged(at_s=1.0, account="judge", endpoint=endpoint, state=state))
    told = totals.to_json()
    assert (told["breakers_opened"], told["breakers"]) == (3, {"a": "closed", "b": "open", "": "open"})


def test_an_outage_counts_once() -> None:
    totals = AccountTotals()
    for state in ("began", "over"):
        totals.changed(OutageChanged(at_s=1.0, account="judge", state=state))
    assert totals.to_json()["outages"] == 1


def test_cached_tokens_and_what_they_saved_add_up_over_calls_and_sessions() -> None:
    totals = StepTotals(3)
    totals.call_ended(dataclasses.replace(call(), cached_tokens=60, cache_saved_usd=0.125))
    again = StepTotals(3)
    again.carry_over(totals.to_json())
    again.call_ended(dataclasses.replace(call(), cached_tokens=40, cache_saved_usd=0.25))
    told = again.to_json()
    assert (told["tokens"], told["cached_tokens"], told["cache_saved_usd"]) == (200, 100, 0.375)
