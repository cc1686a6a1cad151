"""Computes how soon steps could have ended, from the durations of their parts with no time lost between them.

Always true: this is arithmetic on durations that were measured elsewhere; it shares no code with the loop or the agent.
Calls start in the first free slot: those of older steps first, then group after group, then by index. The one device
does one thing at a time, in the only order that the schedule allows:

    generate every step that may be generated, then for each step in turn:
    log-probs, micro-batches and updates, each as soon as the groups it needs are complete; publish; generate one more
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rewardflow.flow.schedule import Order, Schedule, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTimes:
    """One reward call: when its rollout ended, from the start of its step's generation, and how long the call takes."""

    group: int
    index: int
    rollout_ended_s: float
    delay_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchTime:
    num_groups: int
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniBatchTimes:
    micro_batches: tuple[MicroBatchTime, ...]
    update_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """The durations of one step's parts. Calls are in the order in which their rollouts ended."""

    generate_s: float
    calls: tuple[CallTimes, ...]
    log_probs_s: float
    mini_batches: tuple[MiniBatchTimes, ...]
    publish_s: float

    @property
    def compute_s(self) -> float:
        """The device's work in the step."""
        train_s = sum(sum(one.duration_s for one in each.micro_batches) + each.update_s for each in self.mini_batches)
        return self.generate_s + self.log_probs_s + train_s + self.publish_s

    @property
    def call_s(self) -> float:
        """The time of all calls, one after another."""
        return sum(call.delay_s for call in self.calls)


def critical_path(
    steps: Sequence[StepTimes], schedule: Schedule, slots: int, *, one_batch_at_a_time: bool = False
) -> list[float]:
    """Returns when each step is published, in seconds from the start.

    `one_batch_at_a_time` lets no call of a step start before the last of the step before has ended.
    """
    service = _Service(slots, schedule.order, one_batch_at_a_time=one_batch_at_a_time)
    to_generate = iter(steps)
    completions: list[list[float]] = []
    published: list[float] = []
    now_s = 0.0

    def generate(now_s: float) -> float:
        step = next(to_generate, None)
        if step is None:
            return now_s
        completions.append(service.serve(step.calls, now_s))
        return now_s + step.generate_s

    for _ in range(schedule.max_steps_open):
        now_s = generate(now_s)
    for number, step in enumerate(steps):
        now_s = _train(step, completions[number], schedule.stream, now_s) + step.publish_s
        published.append(now_s)
        now_s = generate(now_s)
    return published


def _train(step: StepTimes, completions_s: Sequence[float], stream: Stream, now_s: float) -> float:
    """Returns when the step's last update ends, if the device is free at `now_s`."""
    now_s += step.log_probs_s
    num_trained = 0
    for mini_batch in step.mini_batches:
        num_in_mini_batch = sum(one.num_groups for one in mini_batch.micro_batches)
        num_needed = {"batch": len(completions_s), "mini_batch": num_trained + num_in_mini_batch, "micro_batch": 0}
        for micro_batch in mini_batch.micro_batches:
            num_trained += micro_batch.num_groups
            ready_s = completions_s[max(num_trained, num_needed[stream]) - 1]
            now_s = max(now_s, ready_s) + micro_batch.duration_s
        now_s += mini_batch.update_s
    return now_s


class _Service:
    """The slots that calls run in. Serves steps in order, because calls of older steps go first."""

    def __init__(self, slots: int, order: Order, *, one_batch_at_a_time: bool) -> None:
        self._order = order
        self._free_s = [0.0] * slots
        self._one_batch_at_a_time = one_batch_at_a_time

    def serve(self, calls: Sequence[CallTimes], started_s: float) -> list[float]:
        """Returns when the first group to train is complete, the first two are, and so on.

        Generation of the step starts at `started_s`.
        """
        not_before_s = max(self._free_s) if self._one_batch_at_a_time else -math.inf
        completed_s: defaultdict[int, float] = defaultdict(float)
        for call, ended_s in self._ends(calls, started_s, not_before_s):
            completed_s[call.group] = max(completed_s[call.group], ended_s)
        if self._order == "completion":
            return sorted(completed_s.values())
        return list(itertools.accumulate((completed_s[group] for group in sorted(completed_s)), max))

    def _ends(
        self, calls: Sequence[CallTimes], started_s: float, not_before_s: float
    ) -> Iterator[tuple[CallTimes, float]]:
        released = [max(started_s + call.rollout_ended_s, not_before_s) for call in calls]
        arriving = sorted(range(len(calls)), key=lambda i: released[i])
        waiting: list[tuple[int, int, CallTimes]] = []
        now_s, num_arrived = -math.inf, 0
        for _ in calls:
            now_s = max(now_s, self._free_s[0])
            if not waiting:
                now_s = max(now_s, released[arriving[num_arrived]])
            while num_arrived < len(calls) and released[arriving[num_arrived]] <= now_s:
                arrived = calls[arriving[num_arrived]]
                heapq.heappush(waiting, (arrived.group, arrived.index, arrived))
                num_arrived += 1
            call = heapq.heappop(waiting)[2]
            heapq.heapreplace(self._free_s, now_s + call.delay_s)
            yield call, now_s + call.delay_s
