"""Which job goes next when several runs share an account.

Always true: inside a run the oldest step goes first, then groups one after another; between runs that have work, what
is scarce is shared in proportion to their shares: turns while the pace holds calls back, slots while all are taken. A
run that was idle has saved nothing up, and one that leaves a moment later has gained nothing.

Turns are shared by virtual time: a run's clock advances by 1 / share with each turn, and the run whose clock is
furthest behind goes next. Slots are shared by what is in flight, because calls of one run may take longer than those of
another, and equal turns would then give it nearly all of the slots. Where a share is no whole number of slots, as with
three runs and two slots, what is left over goes round by virtual time too: here a clock advances by how long a call of
the run usually takes, divided by the share.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rewardflow.reward.groups.job import Job


class QueueEntry(NamedTuple):
    """One job that waits for a call, in the order of its run."""

    step: int
    group_number: int
    place: int  # of its first rollout in the group
    sequence: int  # unique, so that nothing after it is ever compared
    job: Job
    is_hedge: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatistics:
    """What one run has at an account."""

    run: str
    share: float
    waiting: int
    in_flight: int
    started: int


_FIRST_GUESS_S = 1.0
_WEIGHT_OF_NEWEST = 0.1


class _Lane:
    __slots__ = ("clock", "heap", "num_in_flight", "num_started", "run", "share", "slot_clock", "usual_s")

    def __init__(self, run: str, share: float, usual_s: float) -> None:
        self.run = run
        self.share = share
        self.clock = 0.0
        self.slot_clock = 0.0
        self.usual_s = usual_s  # that a call takes
        self.heap: list[QueueEntry] = []
        self.num_in_flight = 0
        self.num_started = 0


class FairQueue:
    """`first` and `pop` go together: what was first is what is popped."""

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}
        self._next: _Lane | None = None
        self._is_turn = False
        self._clock = 0.0  # of the run that had the last turn, before it
        self._slot_clock = 0.0  # of the run that was furthest behind when a slot was given
        self._usual_s = _FIRST_GUESS_S

    def __len__(self) -> int:
        return sum(len(lane.heap) for lane in self._lanes.values())

    def __bool__(self) -> bool:
        return any(lane.heap for lane in self._lanes.values())

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

    def first(self, *, scarce_slots: int | None = None) -> QueueEntry | None:
        """The entry that goes next; `scarce_slots` is how many there are, if it is given the last free one of them.

        Done jobs are the caller's to pop.
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
        return None if self._next is None else self._next.heap[0]

    def _furthest_behind(self, ready: list[_Lane], num_slots: int) -> _Lane:
        """A run that lacks a whole slot of its share; if none does, the one that has had least of what is left over."""
        num_slots -= sum(lane.num_in_flight for lane in self._lanes.values() if not lane.heap)
        slots_a_share = num_slots / sum(lane.share for lane in ready)
        lacking = [lane for lane in ready if lane.num_in_flight + 1 <= slots_a_share * lane.share]
        if lacking:
            return min(lacking, key=lambda lane: (lane.num_in_flight / lane.share, lane.slot_clock))
        return min(ready, key=lambda lane: (lane.slot_clock, lane.num_in_flight / lane.share))

    def drop(self) -> None:
        """Take out what was first, without a turn: it no longer matters."""
        assert self._next is not None
        heapq.heappop(self._next.heap)

    def pop(self) -> QueueEntry:
        """Take out what was first, for a call that starts now; `end` gives its slot back."""
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
        return heapq.heappop(lane.heap)

    def end(self, run: str, took_s: float) -> None:
        """A call of the run is over."""
        lane = self._lanes[run]
        lane.num_in_flight -= 1
        weight = max(_WEIGHT_OF_NEWEST, 1 / (lane.num_started - lane.num_in_flight))
        lane.usual_s += weight * (took_s - lane.usual_s)
        self._usual_s = lane.usual_s

    def forget_idle(self) -> None:
        """Let go of runs that have nothing here, once their clocks say nothing any more."""
        idle = [lane for lane in self._lanes.values() if not lane.heap and not lane.num_in_flight]
        is_nobody_left = len(idle) == len(self._lanes)
        for lane in idle:
            is_even = lane.clock <= self._clock and lane.slot_clock <= self._slot_clock
            if is_nobody_left or is_even:
                del self._lanes[lane.run]

    def prune(self) -> None:
        """Drop what was resolved while it waited."""
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
