"""Limits and breakers of one step, counted."""

from __future__ import annotations

from rewardflow.observe.account_totals import AccountTotals
from rewardflow.observe.events import BreakerChanged, LimitChanged, OutageChanged


def limit(value: float | None) -> LimitChanged:
    return LimitChanged(at_s=1.0, account="judge", governor="pace", value=value, reason="rate_limited")


def test_a_limit_is_told_by_its_extremes_and_how_it_ended() -> None:
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
