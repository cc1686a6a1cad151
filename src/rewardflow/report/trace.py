"""Writes a run as a trace for chrome://tracing and Perfetto: devices, steps, every call of the latest steps.

Always true: times count from the first event, in microseconds, as the format requires; overlapping calls are on
different rows, as many as were ever in flight at once; the trace's size is bounded, and `Trace.steps` says which steps
it holds.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rewardflow.drawing.timeline import KINDS
from rewardflow.errors import InvalidInput
from rewardflow.observe.run_directory import DEVICES_FILE
from rewardflow.report.detail import bounds_of
from rewardflow.report.device_log import read_device_log
from rewardflow.report.fields import Fields
from rewardflow.report.line_search import lines_of_steps
from rewardflow.report.run_data import RunData
from rewardflow.report.steps import StepRow

MAX_CALLS = 100_000
_DEVICES, _STEPS, _CALLS = 1, 2, 3
_SLACK_S = 120.0  # calls may outlive their step: lost hedges, cancelled calls

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    events: list[Json]
    steps: Sequence[int]
    is_whole: bool  # no call of these steps was left out

    def to_json(self) -> Json:
        return {"traceEvents": self.events, "displayTimeUnit": "ms"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    started_s: float
    ended_s: float
    name: str
    facts: Json


def trace_of(run: RunData, steps: range | None = None) -> Trace:
    """Makes the trace of these steps, or of the latest that have at most `MAX_CALLS` calls together."""
    rows = [row for row in run.steps if bounds_of(row) is not None and (steps is None or row.step in steps)]
    rows = _latest(rows)
    if not rows:
        asked = "" if steps is None else f" from {steps[0]} to {steps[-1]}"
        raise InvalidInput(f"a trace needs a step with times, got none{asked} in {run.directory.path}")
    numbers = [row.step for row in rows]
    spans = [bound for row in rows if (bound := bounds_of(row)) is not None]
    starts = [start for start, _ in spans]
    starts += [row.judged.first_submitted_s for row in rows if row.judged and row.judged.first_submitted_s is not None]
    began_s, ended_s = min(starts), max(end for _, end in spans)
    calls, is_whole = _calls(run, numbers, began_s, ended_s)
    events = [
        *_names(),
        *_device_events(run, numbers, began_s, ended_s),
        *_step_events(rows, began_s),
        *_load_events(rows, began_s),
        *_call_events(calls, began_s),
    ]
    return Trace(events=events, steps=numbers, is_whole=is_whole)


def _latest(rows: Sequence[StepRow]) -> list[StepRow]:
    kept: list[StepRow] = []
    num_calls = 0
    for row in reversed(rows):
        num_calls += row.judged.calls if row.judged is not None else 0
        if kept and num_calls > MAX_CALLS:
            break
        kept.append(row)
    return kept[::-1]


def _names() -> Iterator[Json]:
    for process, name in ((_DEVICES, "devices"), (_STEPS, "steps"), (_CALLS, "reward calls")):
        yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}


def _device_events(run: RunData, steps: Sequence[int], began_s: float, ended_s: float) -> Iterator[Json]:
    pieces = read_device_log(run.directory.path / DEVICES_FILE, steps, open_together=run.open_together)
    threads: dict[str, int] = {}
    for piece in pieces:
        if piece.ended_s < began_s or piece.started_s > ended_s:
            continue
        if piece.device not in threads:
            threads[piece.device] = len(threads)
            name = {"name": piece.device}
            yield {"ph": "M", "name": "thread_name", "pid": _DEVICES, "tid": threads[piece.device], "args": name}
        facts = {} if piece.step is None else {"step": piece.step}
        yield _span(
            _DEVICES,
            threads[piece.device],
            KINDS.get(piece.kind, piece.kind),
            piece.started_s,
            piece.ended_s,
            began_s,
            facts,
        )


def _step_events(rows: Sequence[StepRow], began_s: float) -> Iterator[Json]:
    for row in rows:
        bounds = bounds_of(row)
        if bounds is not None:
            facts = dict(row.trained.figures) if row.trained is not None else {}
            yield _span(_STEPS, 0, f"step {row.step}", *bounds, began_s, facts)


def _load_events(rows: Sequence[StepRow], began_s: float) -> Iterator[Json]:
    for row in rows:
        load = row.judged.in_flight if row.judged is not None else None
        for place, calls in enumerate([*load.calls, 0.0] if load is not None else []):
            at_s = (load.started_s if load is not None else 0.0) + place * (load.width_s if load is not None else 0.0)
            yield {
                "ph": "C",
                "name": f"calls in flight, step {row.step}",
                "pid": _CALLS,
                "ts": _microseconds(at_s, began_s),
                "args": {"calls": calls},
            }


def _calls(run: RunData, steps: Sequence[int], began_s: float, ended_s: float) -> tuple[list[_Call], bool]:
    found = lines_of_steps(run.directory.events_path, set(steps), open_together=run.open_together)
    calls = []
    for line in found.lines:
        if line.get("event") != "CallEnded":
            continue
        fields = Fields(line, f"{run.directory.events_path}")
        started_s, latency_s = fields.number("started_s"), fields.number("latency_s")
        if started_s is None or latency_s is None or not began_s - 1 <= started_s <= ended_s + _SLACK_S:
            continue
        names = ("step", "group_id", "index", "attempt", "endpoint", "cost_usd", "tokens", "is_hedge")
        facts = {name: line.get(name) for name in names}
        name = f"{fields.text('reward')}: {fields.text('outcome')}"
        calls.append(_Call(started_s=started_s, ended_s=started_s + latency_s, name=name, facts=facts))
    return calls, found.is_whole


def _call_events(calls: Iterable[_Call], began_s: float) -> Iterator[Json]:
    """Puts each call on the first row that is free when it starts."""
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    num_rows = 0
    for call in sorted(calls, key=lambda call: call.started_s):
        while busy and busy[0][0] <= call.started_s:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            heapq.heappush(free, num_rows)
            num_rows += 1
        row = heapq.heappop(free)
        heapq.heappush(busy, (call.ended_s, row))
        yield _span(_CALLS, row, call.name, call.started_s, call.ended_s, began_s, call.facts)


def _span(process: int, thread: int, name: str, started_s: float, ended_s: float, began_s: float, facts: Json) -> Json:
    return {
        "ph": "X",
        "name": name,
        "pid": process,
        "tid": thread,
        "ts": _microseconds(started_s, began_s),
        "dur": round((ended_s - started_s) * 1e6, 1),
        "args": facts,
    }


def _microseconds(at_s: float, began_s: float) -> float:
    return round((at_s - began_s) * 1e6, 1)
