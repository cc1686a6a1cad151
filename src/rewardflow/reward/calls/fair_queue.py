"""Chooses the next job when several runs share an account.

Always true: inside a run the oldest step goes first, then groups one after another, by position. Runs that have work
get scarce resources in proportion to their shares: turns while the rate limit delays calls, slots while all slots are
taken. A run saves up nothing while it is idle, and gains nothing by leaving and coming back.

Turns are shared by virtual time: a run's clock advances by 1 / share with each turn, and the run whose clock is
furthest behind goes next. Slots are shared by the number of calls in flight, because calls of one run may take longer
than those of another, and equal turns would then give it nearly all slots. If a share is not a whole number of slots,
as with three runs and two slots, the rest is shared by virtual time too: here a clock advances by the usual duration of
the run's calls, divided by the share.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rewardflow.reward.groups.job import Job


class QueueEntry(NamedTuple):
    """One job in the queue; entries sort in the order of their run."""

    step: int
    group_position: int
    group_number: int
    place: int  # the index of its first rollout in the group
    sequence: int  # unique, so that the fields after it are never compared
    job: Job
    is_hedge: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatistics:
    """One run's share, jobs and calls at an account."""

    run: str
    share: float
    waiting: int
    in_flight: int
    started: int


_FIRST_GUESS_S = 1.0
_WEIGHT_OF_NEWEST = 0.1


class _Lane:
    """The queue of one run, with its clocks."""

    __slots__ = ("clock", "heap", "num_in_flight", "num_started", "run", "share", "slot_clock", "usual_s")

    def __init__(self, run: str, share: float, usual_s: float) -> None:
        self.run = run
        self.share = share
        self.clock = 0.0
        self.slot_clock = 0.0
        self.usual_s = usual_s  # the usual duration of a call
        self.heap: list[QueueEntry] = []
        self.num_in_flight = 0
        self.num_started = 0


_heap_of = attrgetter("heap")


class FairQueue:
    """The queues of all runs of an account. `pop` and `drop` remove the entry that `first` returned last."""

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}
        self._next: _Lane | None = None
        self._place = 0  # of that entry in the run's heap
        self._is_turn = False
        self._clock = 0.0  # the clock of the run that had the last turn, before that turn
        self._slot_clock = 0.0  # the clock of the run that was furthest behind when the last slot was given
        self._usual_s = _FIRST_GUESS_S

    def __len__(self) -> int:
        return sum(len(lane.heap) for lane in self._lanes.values())

    def __bool__(self) -> bool:
        return any(map(_heap_of, self._lanes.values()))  # asked for every call: a generator would take twice as long

    def __iter__(self) -> Iterator[QueueEntry]:
        return (entry for lane in self._lanes.values() for entry in lane.heap)

    def push(self, entry: QueueEntry) -> None:
        ticket = entry.job.group.ticket
        lane = self._lanes.get(ticket.run)
        if lane is None:
            self.forget_idle()
            lane = self._lanes[ticket.run] = _Lane(ticket.run, ticket.share, self._usual_s)
        if not lane.heap:
            lane.clock = max(lane.clock, self._clock)
            lane.slot_clock = max(lane.slot_clock, self._slot_clock)
            lane.share = ticket.share
        heapq.heappush(lane.heap, entry)

    def first(self, *, scarce_slots: int | None = None, anywhere: random.Random | None = None) -> QueueEntry | None:
        """Returns the next entry; `scarce_slots` is the number of slots, if the entry will take the last free one.

        `anywhere` chooses an entry by chance instead of the run's oldest, if possible one whose job has not failed yet.
        The caller must `drop` entries whose job is done.
        """
        lanes = self._lanes
        if len(lanes) == 1:
            (lane,) = lanes.values()
            self._next = lane if lane.heap else None
        else:
            ready = [lane for lane in lanes.values() if lane.heap]
            if not ready:
                self._next = None
            elif scarce_slots is None:
                self._next = min(ready, key=lambda lane: (lane.clock, lane.num_in_flight / lane.share))
            else:
                self._next = self._furthest_behind(ready, scarce_slots)
        self._is_turn = scarce_slots is None
        if self._next is None:
            return None
        self._place = 0 if anywhere is None else _fresh_place(self._next.heap, anywhere)
        return self._next.heap[self._place]

    def _furthest_behind(self, ready: list[_Lane], num_slots: int) -> _Lane:
        """Returns a run that lacks a whole slot of its share; if none does, the run that got least of the rest."""
        num_slots -= sum(lane.num_in_flight for lane in self._lanes.values() if not lane.heap)
        slots_a_share = num_slots / sum(lane.share for lane in ready)
        lacking = [lane for lane in ready if lane.num_in_flight + 1 <= slots_a_share * lane.share]
        if lacking:
            return min(lacking, key=lambda lane: (lane.num_in_flight / lane.share, lane.slot_clock))
        return min(ready, key=lambda lane: (lane.slot_clock, lane.num_in_flight / lane.share))

    def drop(self) -> None:
        """Removes the first entry without using a turn, because its job is done."""
        assert self._next is not None
        self._remove(self._next.heap)

    def pop(self) -> QueueEntry:
        """Removes the first entry for a call that starts now; `end` frees its slot."""
        lane = self._next
        assert lane is not None
        if self._is_turn:
            self._clock = max(self._clock, lane.clock)
            lane.clock += 1.0 / lane.share
        else:
            behind = min(one.slot_clock for one in self._lanes.values() if one.heap)
            self._slot_clock = max(self._slot_clock, behind)
            lane.slot_clock += lane.usual_s / lane.share
        lane.num_in_flight += 1
        lane.num_started += 1
        return self._remove(lane.heap)

    def _remove(self, heap: list[QueueEntry]) -> QueueEntry:
        if self._place == 0:
            return heapq.heappop(heap)
        entry = heap.pop(self._place)
        heapq.heapify(heap)
        return entry

    def end(self, run: str, took_s: float) -> None:
        """Notes that a call of the run has ended."""
        lane = self._lanes[run]
        lane.num_in_flight -= 1
        weight = max(_WEIGHT_OF_NEWEST, 1 / (lane.num_started - lane.num_in_flight))
        lane.usual_s += weight * (took_s - lane.usual_s)
        self._usual_s = lane.usual_s

    def forget_idle(self) -> None:
        """Drops runs without jobs and calls, once their clocks are not ahead of the others."""
        idle = [lane for lane in self._lanes.values() if not lane.heap and not lane.num_in_flight]
        is_nobody_left = len(idle) == len(self._lanes)
        for lane in idle:
            is_even = lane.clock <= self._clock and lane.slot_clock <= self._slot_clock
            if is_nobody_left or is_even:
                del self._lanes[lane.run]

    def prune(self) -> None:
        """Drops jobs that were resolved in the queue."""
        for lane in self._lanes.values():
            lane.heap = [entry for entry in lane.heap if not entry.job.is_done]
            heapq.heapify(lane.heap)
        self.forget_idle()

    def clear(self) -> None:
        for lane in self._lanes.values():
            lane.heap.clear()

    def statistics(self) -> tuple[RunStatistics, ...]:
        return tuple(
            RunStatistics(
                run=lane.run,
                share=lane.share,
                waiting=sum(not entry.job.is_done for entry in lane.heap),
                in_flight=lane.num_in_flight,
                started=lane.num_started,
            )
            for lane in self._lanes.values()
        )


def _fresh_place(heap: list[QueueEntry], rng: random.Random) -> int:
    """Returns the place of an entry chosen by chance, if possible of one whose job has not failed yet."""
    fresh = [place for place, entry in enumerate(heap) if entry.job.fault is None and not entry.job.is_done]
    return rng.choice(fresh) if fresh else rng.randrange(len(heap))
