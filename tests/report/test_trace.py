"""A run as a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from written_runs import write_run

from rewardflow.errors import InvalidInput
from rewardflow.observe.run_directory import RunDirectory
from rewardflow.report.run_data import read_run
from rewardflow.report.trace import trace_of


def spans(events: list[dict[str, Any]], process: int) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == "X" and event["pid"] == process]


def test_devices_steps_and_calls_are_there_with_times_from_the_first(tmp_path: Path) -> None:
    trace = trace_of(read_run(write_run(tmp_path / "run").path))
    assert (list(trace.steps), trace.is_whole) == ([0, 1, 2], True)
    devices, steps, calls = (spans(trace.events, process) for process in (1, 2, 3))
    assert [event["name"] for event in devices[:3]] == ["generate", "waits for verdicts", "update"]
    assert [(event["name"], event["ts"], event["dur"]) for event in steps[:2]] == [
        ("step 0", 0.0, 1e7),
        ("step 1", 1e7, 1e7),
    ]
    assert len(calls) == 9
    assert calls[0]["name"] == "judge: rate_limited"
    assert (calls[0]["ts"], calls[0]["dur"]) == (1e6, 2e6)


def test_calls_that_overlap_lie_on_different_rows(tmp_path: Path) -> None:
    calls = spans(trace_of(read_run(write_run(tmp_path / "run").path)).events, 3)
    for one in calls:
        beside = [
            other
            for other in calls
            if other is not one and other["ts"] < one["ts"] + one["dur"] and one["ts"] < other["ts"] + other["dur"]
        ]
        assert all(other["tid"] != one["tid"] for other in beside)
    assert {call["tid"] for call in calls} == {0, 1}


def test_calls_in_flight_are_a_counter_that_ends_at_nothing(tmp_path: Path) -> None:
    counters = [
        event for event in trace_of(read_run(write_run(tmp_path / "run", steps=1).path)).events if event["ph"] == "C"
    ]
    assert max(event["args"]["calls"] for event in counters) == 2.0
    assert counters[-1]["args"]["calls"] == 0.0


def test_some_steps_can_be_asked_for_and_others_are_not_there(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run").path)
    assert list(trace_of(run, range(1, 2)).steps) == [1]
    with pytest.raises(InvalidInput, match="a trace needs a step with times, got none from 7 to 8"):
        trace_of(run, range(7, 9))
    with pytest.raises(InvalidInput, match="a trace needs a step with times"):
        trace_of(read_run(RunDirectory.create(tmp_path / "empty").path))
