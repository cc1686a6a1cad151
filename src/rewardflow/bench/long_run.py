"""Writes the directory of a made-up long run, to measure what reading one costs.

Always true: every line has the form that a real run writes, made by the same records; the numbers repeat after a few
steps, because making five million calls one by one would take longer than the measurement.
"""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardflow.observe.events import CallEnded, DeviceIdled, DeviceWorked, GroupDelivered, VerdictReached, to_json
from rewardflow.observe.line_file import encode_line
from rewardflow.observe.run_directory import DEVICES_FILE, JOURNAL_FILE, RunDirectory
from rewardflow.observe.step_totals import StepTotals
from rewardflow.reward.journal.database import open_for_writing
from rewardflow.reward.journal.verdict_rows import JournalEntry, insert, row_of
from rewardflow.types import Reward, Rollout

STEP_S = 300.0
GROUP_SIZE = 5
MINI_BATCHES = 4
_PROTOTYPES = 4
_MICRO_BATCHES = 40
_ROWS_A_COMMIT = 500


@dataclass(frozen=True, slots=True)
class _Template:
    """An encoded event with gaps for its step and times: encoding it again for each step would be slow."""

    line: bytes
    times_s: tuple[float, ...]

    @classmethod
    def of(cls, event: CallEnded | VerdictReached) -> _Template:
        data = to_json(event)
        times_s = tuple(data[name] for name in ("at_s", "started_s") if name in data)
        line = encode_line({**data, "step": "%d", **{name: "%.6f" for name in ("at_s", "started_s") if name in data}})
        return cls(line.replace(b'"%d"', b"%d").replace(b'"%.6f"', b"%.6f"), times_s)

    def at(self, step: int) -> bytes:
        began_s = step * STEP_S
        at_s, *started_s = [time_s + began_s for time_s in self.times_s]
        return self.line % (at_s, step, *started_s)


@dataclass(frozen=True, slots=True)
class _Prototype:
    """The lines of step 0 at time 0."""

    totals: dict[str, Any]
    events: tuple[_Template, ...]


def write_long_run(path: Path, *, steps: int, calls_a_step: int, journal_rows: int) -> None:
    directory = RunDirectory.create(path, name="long")
    prototypes = [_prototype(seed, calls_a_step) for seed in range(min(_PROTOTYPES, steps))]
    with (
        directory.events_path.open("wb") as events,
        directory.steps_path.open("wb") as totals,
        directory.metrics_path.open("wb") as metrics,
        (path / DEVICES_FILE).open("wb") as devices,
    ):
        for step in range(steps):
            prototype = prototypes[step % len(prototypes)]
            events.writelines(template.at(step) for template in prototype.events)
            totals.write(encode_line(_moved(prototype.totals, step)))
            metrics.write(encode_line(_metrics(step)))
            devices.writelines(encode_line(line) for line in _device_lines(step))
    _write_journal(path / JOURNAL_FILE, journal_rows)


def _prototype(seed: int, num_calls: int) -> _Prototype:
    chance = random.Random(seed)
    totals = StepTotals(0)
    events: list[_Template] = []
    for number in range(num_calls):
        call = _call(chance, number)
        verdict = _verdict(chance, call)
        totals.call_ended(call)
        totals.verdict(verdict)
        events += [_Template.of(call), _Template.of(verdict)]
    for group in range(num_calls // GROUP_SIZE):
        totals.group(
            GroupDelivered(
                at_s=chance.uniform(20.0, STEP_S),
                step=0,
                group_id=str(group),
                num_rollouts=GROUP_SIZE,
                num_failed=0,
                first_submitted_s=1.0,
            )
        )
    return _Prototype(totals.to_json(), tuple(events))


def _call(chance: random.Random, number: int) -> CallEnded:
    latency_s = chance.lognormvariate(2.0, 0.7)
    started_s = chance.uniform(0.0, STEP_S - 60.0)
    return CallEnded(
        at_s=started_s + latency_s,
        step=0,
        group_id=str(number // GROUP_SIZE),
        index=number % GROUP_SIZE,
        reward="judge",
        attempt=1,
        endpoint="https://judge.example/v1",
        started_s=started_s,
        latency_s=latency_s,
        outcome=chance.choices(["scored", "rate_limited", "service", "timeout"], [94, 3, 2, 1])[0],
        cost_usd=0.0008,
        tokens=400,
    )


def _verdict(chance: random.Random, call: CallEnded) -> VerdictReached:
    is_scored = call.outcome == "scored"
    return VerdictReached(
        at_s=call.at_s,
        step=0,
        group_id=call.group_id,
        index=call.index,
        status="scored" if is_scored else "failed",
        value=chance.random() if is_scored else None,
        kind=None if is_scored else "service",
        attempts=1,
        latency_s=call.latency_s,
        waited_s=chance.expovariate(1.0),
        components={"correctness": chance.random(), "style": chance.random()} if is_scored else {},
    )


def _moved(totals: dict[str, Any], step: int) -> dict[str, Any]:
    began_s = step * STEP_S
    in_flight = {**totals["in_flight"], "started_s": totals["in_flight"]["started_s"] + began_s}
    names = ("first_submitted_s", "first_delivered_s", "last_delivered_s")
    times = {name: totals[name] + began_s for name in names if totals[name] is not None}
    return {**totals, "step": step, "in_flight": in_flight, **times}


def _metrics(step: int) -> dict[str, Any]:
    chance = random.Random(step)
    spread = {"count": 1280, "mean": 9.0, "p10": 3.0, "p50": 7.4, "p90": 18.0, "max": 90.0}
    return {
        "v": 1,
        "step": step,
        "source": "train",
        "version": step + 1,
        "ended_s": (step + 1) * STEP_S,
        "duration_s": STEP_S,
        "first_update_s": 80.0,
        "busy_s": {"generate": 90.0, "log_probs": 20.0, "update": 120.0, "publish": 5.0},
        "idle_s": {"reward": 60.0, "other": 5.0},
        "exposed_s": 60.0,
        "hidden_s": 200.0,
        "num_updates": MINI_BATCHES,
        "failed": {"service": 40},
        "dropped": {"equal_scores": 3},
        "score_mean": 0.2 + 0.6 * step / 1000 + chance.gauss(0, 0.02),
        "component_means": {"correctness": chance.random(), "style": chance.random()},
        "cost_usd": 4.0,
        **{name: chance.random() for name in ("kl", "entropy", "grad_norm", "lr", "policy_loss", "ratio")},
        "response_tokens_mean": 400 + chance.gauss(0, 20),
        "staleness_mean": 1.0,
        "staleness_max": 1,
        "mini_batch_latency_s": [spread] * MINI_BATCHES,
    }


def _device_lines(step: int) -> list[dict[str, Any]]:
    at_s = step * STEP_S
    lines = []
    works = [("generate", 90.0), ("log_probs", 20.0), *[("update", 120.0 / _MICRO_BATCHES)] * _MICRO_BATCHES]
    for work, lasted_s in (*works, ("publish", 5.0)):
        worked = DeviceWorked(at_s=at_s + lasted_s, device="trainer", work=work, step=step, started_s=at_s)
        lines.append(to_json(worked))
        at_s += lasted_s
    idled = DeviceIdled(at_s=at_s + 65.0, device="trainer", cause="reward", started_s=at_s)
    return [*lines, to_json(idled)]


def _write_journal(path: Path, num_rows: int) -> None:
    chance = random.Random(0)
    with contextlib.closing(open_for_writing(path, lock_timeout_s=0.0)) as connection:
        for first in range(0, num_rows, _ROWS_A_COMMIT):
            numbers = range(first, min(first + _ROWS_A_COMMIT, num_rows))
            insert(connection, [row_of(_entry(chance, number), "full") for number in numbers])


def _entry(chance: random.Random, number: int) -> JournalEntry:
    rollout = Rollout(
        group_id=str(number // GROUP_SIZE),
        index=number % GROUP_SIZE,
        group_size=GROUP_SIZE,
        prompt="Natalia sold clips to 48 friends in April, and half as many in May. How many in all? " * 4,
        response="She sold 48 / 2 = 24 clips in May, and 48 + 24 = 72 in all. " * 12,
        ground_truth="72",
        step=number // 5000,
        policy_version=number // 5000,
    )
    verdict = Reward(value=chance.random(), query="Is it right? " * 40, explanation="It is. " * 40, attempts=1)
    return JournalEntry(
        key=number.to_bytes(16, "big"),
        run="default",
        reward="judge",
        identity="c0ffee",
        rollout=rollout,
        verdict=verdict,
        at_s=1.7e9,
    )
