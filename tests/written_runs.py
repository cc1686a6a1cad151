"""Run directories written line by line, so that a test knows every figure in them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rewardflow.observe.events import (
    CallEnded,
    DeviceIdled,
    DeviceWorked,
    Event,
    GroupDelivered,
    VerdictReached,
    to_json,
)
from rewardflow.observe.run_directory import DEVICES_FILE, RunDirectory
from rewardflow.observe.step_totals import StepTotals


def write_lines(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


def metrics_line(step: int, **fields: Any) -> dict[str, Any]:
    """A step of 10 s: 6 of work, 3 of waiting for verdicts, 1 of other waiting."""
    return {
        "v": 1,
        "step": step,
        "source": "train",
        "ended_s": 100.0 + 10.0 * (step + 1),
        "duration_s": 10.0,
        "busy_s": {"generate": 4.0, "update": 2.0},
        "idle_s": {"reward": 3.0, "other": 1.0},
        "exposed_s": 3.0,
        "hidden_s": 5.0,
        "score_mean": 0.25 * (step + 1),
        "component_means": {"style": 0.5},
        "failed": {"timeout": 1},
        "dropped": {"equal_scores": 1},
        "kl": 0.1,
        "entropy": 2.0,
        "response_tokens_mean": 30.0,
        "staleness_mean": 1.0,
        "staleness_max": 1,
        "cost_usd": 0.5,
        "mini_batch_latency_s": [
            {"count": 2, "mean": 1.0, "p10": 0.5, "p50": 1.0, "p90": 1.5, "max": 2.0},
            {"count": 2, "mean": 3.0, "p10": 2.0, "p50": 3.0, "p90": 5.0, "max": 6.0},
        ],
        **fields,
    }


def a_call(step: int, *, started_s: float, latency_s: float, outcome: str = "scored", attempt: int = 1) -> CallEnded:
    return CallEnded(
        at_s=started_s + latency_s,
        step=step,
        group_id="q",
        index=0,
        reward="judge",
        attempt=attempt,
        started_s=started_s,
        latency_s=latency_s,
        outcome=outcome,
        cost_usd=0.25,
        tokens=100,
    )


def events_of_step(step: int, began_s: float | None = None) -> list[Event]:
    """Two verdicts, one of them failed, from three calls of 2 s, one of them answered 429; they waited 1 s."""
    began_s = 100.0 + 10.0 * step if began_s is None else began_s
    calls = [
        a_call(step, started_s=began_s + 1, latency_s=2.0, outcome="rate_limited"),
        a_call(step, started_s=began_s + 3, latency_s=2.0, attempt=2),
        a_call(step, started_s=began_s + 3, latency_s=2.0, outcome="timeout"),
    ]
    at_s = began_s + 6
    common: dict[str, Any] = {"at_s": at_s, "step": step, "group_id": "q", "attempts": 1, "waited_s": 1.0}
    verdicts = [
        VerdictReached(**common, index=0, status="scored", value=0.5, latency_s=2.0, components={"style": 0.5}),
        VerdictReached(**common, index=1, status="failed", kind="timeout", error="no answer", latency_s=4.0),
    ]
    group = GroupDelivered(
        at_s=at_s, step=step, group_id="q", num_rollouts=2, num_failed=1, first_submitted_s=began_s + 1
    )
    return [*calls, *verdicts, group]


def totals_line(step: int, began_s: float | None = None) -> dict[str, Any]:
    totals = StepTotals(step)
    for event in events_of_step(step, began_s):
        match event:
            case CallEnded():
                totals.call_ended(event)
            case VerdictReached():
                totals.verdict(event)
            case GroupDelivered():
                totals.group(event)
    return totals.to_json()


def device_events(step: int) -> list[Event]:
    began_s = 100.0 + 10.0 * step
    return [
        DeviceWorked(at_s=began_s + 4, device="gpu", work="generate", step=step, started_s=began_s),
        DeviceIdled(at_s=began_s + 7, device="gpu", cause="reward", started_s=began_s + 4),
        DeviceWorked(at_s=began_s + 9, device="gpu", work="update", step=step, started_s=began_s + 7),
    ]


def write_run(path: Path, *, steps: int = 3, with_trainer: bool = True, name: str | None = None) -> RunDirectory:
    directory = RunDirectory.create(path, name=name)
    opened = {"v": 1, "event": "AgentOpened", "at_s": 99.0, "rewards": ["judge"], "settings": {"run": "default"}}
    write_lines(directory.events_path, [opened])
    for step in range(steps):
        write_lines(directory.events_path, [to_json(event) for event in events_of_step(step)])
        write_lines(directory.steps_path, [totals_line(step)])
        if with_trainer:
            write_lines(directory.metrics_path, [metrics_line(step)])
            write_lines(path / DEVICES_FILE, [to_json(event) for event in device_events(step)])
    if with_trainer:
        settings = {"steps": steps, "schedule": {"mini_batches": 2, "stream": "mini_batch", "max_staleness": 1}}
        (path / "settings.json").write_text(json.dumps(settings), "utf-8")
    return directory
