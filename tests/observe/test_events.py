"""Events survive JSON, whatever values they hold."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.errors import InvalidInput
from rewardflow.observe.events import (
    SCHEMA_VERSION,
    AccountLoad,
    AgentEnded,
    AgentOpened,
    BreakerChanged,
    CallEnded,
    DeviceIdled,
    DeviceWorked,
    Event,
    EventList,
    EventRelay,
    EventSink,
    GroupDelivered,
    LimitChanged,
    OutageChanged,
    VerdictReached,
    WorkerAbandoned,
    from_json,
    name_on_disk,
    plain,
    to_json,
)

CALL = CallEnded(
    at_s=2.5,
    step=3,
    group_id="q17",
    index=1,
    reward="judge",
    attempt=2,
    endpoint="https://judge/v1",
    started_s=1.0,
    latency_s=1.5,
    outcome="scored",
    cost_usd=0.002,
    tokens=812,
    is_hedge=True,
)

ONE_OF_EACH = [
    CALL,
    VerdictReached(
        at_s=3.0, step=3, group_id="q17", index=1, status="scored", value=0.5, components={"style": 0.25, "fact": None}
    ),
    VerdictReached(at_s=3.0, step=3, group_id="q17", index=0, status="failed", kind="timeout", error="no answer"),
    GroupDelivered(at_s=4.0, step=3, group_id="q17", num_rollouts=8, num_failed=1, first_submitted_s=0.5),
    LimitChanged(at_s=5.0, account="judge", governor="pace", value=None, reason="no limit seen"),
    BreakerChanged(at_s=6.0, account="judge", endpoint=None, state="open"),
    OutageChanged(at_s=7.0, account="judge", state="probing", reason="20 of 20 failed"),
    WorkerAbandoned(at_s=8.0, reward="judge", num_abandoned=1),
    AccountLoad(at_s=8.5, account="judge", in_flight=64, waiting=1000, limit=64, rpm=600.0, broken=1),
    AgentOpened(at_s=0.0, rewards=("judge", "length"), settings={"max_concurrency": 64, "endpoints": ["a", "b"]}),
    AgentEnded(at_s=9.0, statistics={"calls": 7, "latency_s": {"p50": 1.5}}),
    DeviceWorked(at_s=10.0, device="trainer", work="update", step=3, started_s=9.5),
    DeviceIdled(at_s=2.0, device="gpu", cause="reward", started_s=1.0),
]


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: type(event).__name__)
def test_an_event_survives_a_trip_through_json(event: Event) -> None:
    assert from_json(json.loads(json.dumps(to_json(event), allow_nan=False))) == event


def test_every_kind_of_event_is_tried_above() -> None:
    tried = {name_on_disk(type(event)) for event in ONE_OF_EACH}
    assert tried == {name for name, kind in Event.by_name.items() if kind.__module__ == Event.__module__}


def test_the_end_of_an_agent_keeps_the_name_that_older_files_have_for_it() -> None:
    data = to_json(AgentEnded(at_s=1.0))
    assert data["event"] == "AgentClosed"
    assert isinstance(from_json(data), AgentEnded)


def test_an_event_says_its_version_and_its_name_first() -> None:
    data = to_json(CALL)
    assert list(data.items())[:3] == [("v", SCHEMA_VERSION), ("event", "CallEnded"), ("at_s", 2.5)]


def test_fields_that_a_later_release_added_are_left_out() -> None:
    assert from_json({**to_json(CALL), "colour": "green"}) == CALL


def test_fields_that_an_earlier_release_lacked_get_their_defaults() -> None:
    data = to_json(CALL)
    del data["is_hedge"], data["tokens"]
    assert from_json(data) == dataclasses.replace(CALL, is_hedge=False, tokens=0)


def test_an_event_without_a_field_it_needs_is_refused_by_name() -> None:
    data = to_json(CALL)
    del data["group_id"]
    with pytest.raises(InvalidInput, match=r"CallEnded.*group_id"):
        from_json(data)


@pytest.mark.parametrize("name", ["Teleported", None, 7, "Event"])
def test_an_unknown_event_is_refused_with_those_that_are_known(name: object) -> None:
    with pytest.raises(InvalidInput, match=r"CallEnded.*got event="):
        from_json({**to_json(CALL), "event": name})


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, 0, None, "1"])
def test_another_schema_version_is_refused(version: object) -> None:
    with pytest.raises(InvalidInput, match=r"schema version of 1 to 1, got v="):
        from_json({**to_json(CALL), "v": version})


def test_a_new_kind_of_event_is_one_class_and_nothing_else() -> None:
    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class WeightsPublished(Event):
        version: int

    try:
        event = WeightsPublished(at_s=1.0, version=7)
        assert from_json(to_json(event)) == event
    finally:
        del Event.by_name["WeightsPublished"]


def test_two_kinds_of_event_cannot_share_a_name() -> None:
    with pytest.raises(InvalidInput, match="CallEnded"):
        type("CallEnded", (Event,), {})
    assert Event.by_name["CallEnded"] is CallEnded


def test_events_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        CALL.at_s = 1.0  # type: ignore[misc]
    assert not hasattr(CALL, "__dict__")


def test_numbers_that_json_lacks_become_null() -> None:
    event = dataclasses.replace(CALL, latency_s=math.nan, cost_usd=math.inf)
    data = to_json(event)
    assert (data["latency_s"], data["cost_usd"]) == (None, None)


def test_settings_of_any_type_become_json() -> None:
    mixed: dict[Any, Any] = {"run_dir": Path("runs/a"), "seen": {1}, 3: (1, math.nan), "raw": b"x", "on": True}
    settings = MappingProxyType(mixed)
    data = to_json(AgentOpened(at_s=0.0, rewards=["judge"], settings=settings))
    assert data["settings"] == {"run_dir": "runs/a", "seen": [1], "3": [1, None], "raw": "b'x'", "on": True}


ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.floats(), inner) | st.tuples(inner),
    max_leaves=20,
)


@given(value=ANYTHING)
def test_whatever_is_made_plain_can_be_encoded(value: object) -> None:
    data = plain(value)
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_a_list_in_memory_is_a_sink_that_keeps_events_in_order() -> None:
    events = EventList()
    sink: EventSink = events
    for event in ONE_OF_EACH:
        sink.emit(event)
    assert events.events == ONE_OF_EACH
    assert events.of(CallEnded) == [CALL]
    assert events.counts()["VerdictReached"] == 2


def test_a_relay_passes_events_on_to_every_sink_that_was_added_before() -> None:
    relay, early, late = EventRelay(), EventList(), EventList()
    relay.emit(ONE_OF_EACH[0])
    relay.add(early)
    relay.emit(ONE_OF_EACH[1])
    relay.add(late)
    relay.emit(ONE_OF_EACH[2])
    assert early.events == ONE_OF_EACH[1:3]
    assert late.events == ONE_OF_EACH[2:3]


@pytest.mark.parametrize("depth", [900, 5_000, 100_000])
def test_what_is_nested_without_end_is_cut_with_a_note(depth: int) -> None:
    deep: Any = 1
    for _ in range(depth):
        deep = [{"a": deep}]
    text = json.dumps(plain({"deep": deep, "beside": 1}))
    assert text.count("(nested more than 100 deep)") == 1
    assert text.endswith('"beside": 1}')
