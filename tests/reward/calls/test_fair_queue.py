"""Turns and slots between runs, without a loop or a call."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rewardflow.reward.calls.fair_queue import FairQueue, QueueEntry


def entry(run: str, sequence: int, *, step: int = 0, share: float = 1.0) -> QueueEntry:
    ticket = SimpleNamespace(run=run, share=share)
    job: Any = SimpleNamespace(group=SimpleNamespace(ticket=ticket), is_done=False, fault=None)
    return QueueEntry(step, 0, sequence, 0, sequence, job, False)


def filled(shares: dict[str, float], count: int) -> FairQueue:
    queue = FairQueue()
    for number, (run, share) in enumerate(shares.items()):
        for i in range(count):
            queue.push(entry(run, number * count + i, share=share))
    return queue


def next_run(queue: FairQueue, *, scarce_slots: int | None = None) -> str:
    assert queue.first(scarce_slots=scarce_slots) is not None
    return queue.pop().job.group.ticket.run


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_of_one_run_the_oldest_step_goes_first(steps: list[int]) -> None:
    queue = FairQueue()
    for i, step in enumerate(steps):
        queue.push(entry("a", i, step=step))
    order = []
    while queue.first() is not None:
        order.append(queue.pop().step)
    assert order == sorted(steps)


def test_an_entry_from_anywhere_is_one_that_has_not_failed_and_leaves_the_others_in_order() -> None:
    queue = FairQueue()
    for i in range(20):
        queue.push(entry("a", i))
        if i < 10:
            next(one for one in queue if one.sequence == i).job.fault = SimpleNamespace(kind="timeout")  # type: ignore[assignment]
    assert queue.first(anywhere=random.Random(0)) is not None
    taken = queue.pop().sequence
    assert 10 <= taken < 20
    rest = []
    while queue.first() is not None:
        rest.append(queue.pop().sequence)
    assert rest == [i for i in range(20) if i != taken]


@given(st.dictionaries(st.sampled_from("abcd"), st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=2))
def test_turns_are_shared_by_share_however_many_runs_there_are(shares: dict[str, float]) -> None:
    queue = filled(shares, 200)
    turns = Counter(next_run(queue) for _ in range(100))
    for run, share in shares.items():
        assert abs(turns[run] - 100 * share / sum(shares.values())) <= len(shares) + max(shares.values())


def test_a_run_that_was_idle_has_saved_nothing_up() -> None:
    queue = filled({"a": 1.0}, 200)
    for _ in range(100):
        next_run(queue)
    for i in range(50):
        queue.push(entry("b", 1000 + i))
    turns = Counter(next_run(queue) for _ in range(40))
    assert abs(turns["a"] - turns["b"]) <= 2


def test_a_run_that_empties_its_queue_each_time_gains_no_turn_by_that() -> None:
    queue = filled({"a": 1.0}, 200)
    turns: Counter[str] = Counter()
    for i in range(100):
        if turns["b"] == 0 or not any(one.job.group.ticket.run == "b" for one in queue):
            queue.push(entry("b", 1000 + i))
        turns[next_run(queue)] += 1
    assert abs(turns["a"] - turns["b"]) <= 2


@given(st.sampled_from([1.0, 2.0, 4.0]), st.lists(st.booleans(), min_size=50, max_size=200))
def test_when_slots_are_scarce_what_is_in_flight_is_shared_whosever_calls_end_sooner(
    share: float, ends_b: list[bool]
) -> None:
    """Calls of b end, or of a; each time the slot goes to the run that has too few."""
    queue = filled({"a": 1.0, "b": share}, 1000)
    in_flight = Counter(next_run(queue, scarce_slots=30) for _ in range(30))
    for is_b in ends_b:
        run = "b" if is_b and in_flight["b"] else "a"
        queue.end(run, 1.0)
        in_flight[run] -= 1
        in_flight[next_run(queue, scarce_slots=30)] += 1
        assert abs(in_flight["b"] - share * in_flight["a"]) <= 1 + share


@given(
    shares=st.dictionaries(st.sampled_from("abcd"), st.sampled_from([0.5, 1.0, 3.0]), min_size=2),
    call_s=st.fixed_dictionaries(dict.fromkeys("abcd", st.sampled_from([0.2, 1.0, 4.0]))),
    num_slots=st.integers(1, 9),
)
def test_slots_are_shared_by_time_also_when_there_are_fewer_of_them_than_runs(
    shares: dict[str, float], call_s: dict[str, float], num_slots: int
) -> None:
    queue = filled(shares, 2)
    now_s, duration_s, sequence = 0.0, 200.0, 1000
    out: list[tuple[float, str]] = []  # when a call ends, and whose it is
    used_s: Counter[str] = Counter()
    while now_s < duration_s:
        while len(out) < num_slots:
            run = next_run(queue, scarce_slots=num_slots)
            heapq.heappush(out, (now_s + call_s[run], run))
            used_s[run] += call_s[run]
            sequence += 1
            queue.push(entry(run, sequence, share=shares[run]))
        now_s, run = heapq.heappop(out)
        queue.end(run, call_s[run])
    for run, share in shares.items():
        fair_s = duration_s * num_slots * share / sum(shares.values())
        assert abs(used_s[run] - fair_s) <= 0.1 * fair_s + 8.0


def test_what_was_resolved_while_it_waited_is_dropped_and_costs_no_turn() -> None:
    queue = filled({"a": 1.0, "b": 1.0}, 10)
    for one in queue:
        if one.job.group.ticket.run == "a" and one.sequence < 5:
            one.job.is_done = True
    queue.prune()
    assert len(queue) == 15
    assert Counter(next_run(queue) for _ in range(8)) == {"a": 4, "b": 4}
    assert {seen.run: (seen.waiting, seen.in_flight) for seen in queue.statistics()} == {"a": (1, 4), "b": (6, 4)}


def test_a_run_that_is_over_is_forgotten() -> None:
    queue = filled({"a": 1.0, "b": 1.0}, 1)
    for _ in range(2):
        queue.end(next_run(queue), 1.0)
    queue.push(entry("c", 9))
    assert "c" in {seen.run for seen in queue.statistics()}
    next_run(queue)
    queue.end("c", 1.0)
    queue.prune()
    assert queue.statistics() == ()
