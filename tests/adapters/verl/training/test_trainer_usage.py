"""Where the time of a step went."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.adapters.verl.training.trainer_usage import TrainerUsage
from rewardflow.errors import FlowError
from rewardflow.observe.events import DeviceIdled, DeviceWorked, EventList


class Hands:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@given(st.lists(st.tuples(st.sampled_from(["update", "generate", "reward", "other"]), st.integers(0, 100))))
def test_every_second_has_one_label(parts: list[tuple[str, int]]) -> None:
    hands = Hands()
    usage = TrainerUsage(now=hands)
    for label, seconds in parts:
        match label:
            case "update" | "generate":
                with usage.working(label, step=1):
                    hands.now_s += seconds
            case "reward":
                with usage.waiting_for("reward"):
                    hands.now_s += seconds
            case _:
                hands.now_s += seconds
    totals = usage.take(outstanding_s=0.0)
    assert totals.wall_s == pytest.approx(sum(seconds for _, seconds in parts))
    assert totals.exposed_s == pytest.approx(sum(seconds for label, seconds in parts if label == "reward"))


def test_reward_time_is_exposed_while_the_device_waits_and_hidden_otherwise() -> None:
    hands = Hands()
    usage = TrainerUsage(now=hands)
    with usage.working("update", step=1):
        hands.now_s += 3
    with usage.waiting_for("reward"):
        hands.now_s += 2
    totals = usage.take(outstanding_s=5.0)
    assert (totals.exposed_s, totals.hidden_s) == (2, 3)


def test_totals_are_those_since_the_last_taking() -> None:
    hands = Hands()
    usage = TrainerUsage(now=hands)
    with usage.working("update", step=1):
        hands.now_s += 3
    usage.take(outstanding_s=0.0)
    hands.now_s += 1
    totals = usage.take(outstanding_s=0.0)
    assert (totals.busy_s, totals.idle_s) == ({}, {"other": 1})  # nothing of the work before


def test_work_is_told_as_an_event_with_its_start_and_end() -> None:
    hands, events = Hands(), EventList()
    usage = TrainerUsage(events, now=hands)
    hands.now_s = 2.0
    with usage.working("publish", step=7):
        hands.now_s = 5.0
    assert events.of(DeviceWorked) == [DeviceWorked(at_s=5.0, device="verl", work="publish", step=7, started_s=2.0)]


def test_waiting_is_told_with_its_cause_unless_there_was_nothing_to_wait_for() -> None:
    hands, events = Hands(), EventList()
    usage = TrainerUsage(events, now=hands)
    with usage.waiting_for("reward"):
        pass
    with usage.waiting_for("reward"):
        hands.now_s = 5.0
    assert events.of(DeviceIdled) == [DeviceIdled(at_s=5.0, device="verl", cause="reward", started_s=0.0)]


def test_two_things_at_a_time_are_a_mistake() -> None:
    usage = TrainerUsage()
    with (
        pytest.raises(FlowError, match="got update inside generate"),
        usage.working("generate", step=1),
        usage.working("update", step=1),
    ):
        pass
