"""Counts the calls of a mock judge.

Always true: every call is in flight or has one outcome, so calls = in_flight + the sum of the outcomes. Only the
judge's own thread counts; any thread may read the counts.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class MockJudgeStatistics:
    """The counts at one moment.

    `outcomes` are by name: `answered`, each fault, `down`, `limited_concurrency`, `limited_requests`, `limited_tokens`,
    `bad_request`, `disconnected` (the client went away first), `expired` (in a batch). `admitted_again[n]` is how many
    requests were admitted for the (n + 1)th time; [0] is the number of different requests.
    """

    calls: int
    in_flight: int
    peak_in_flight: int
    outcomes: Mapping[str, int]
    admitted_again: Mapping[int, int]
    prompt_tokens: int
    completion_tokens: int
    is_down: bool
    batches: int = 0  # that were created

    @property
    def different_requests(self) -> int:
        return self.admitted_again.get(0, 0)

    def to_json(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "in_flight": self.in_flight,
            "peak_in_flight": self.peak_in_flight,
            "outcomes": dict(self.outcomes),
            "different_requests": self.different_requests,
            "admitted_again": {str(times): count for times, count in self.admitted_again.items()},
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "is_down": self.is_down,
            "batches": self.batches,
        }


class CallRecord:
    """The outcome of one call; the server fills it in while the call runs."""

    __slots__ = ("outcome",)

    def __init__(self) -> None:
        self.outcome = "disconnected"  # unless the server sets another outcome before the call ends


class Counts:
    """Counts the calls of one judge."""

    def __init__(self) -> None:
        self.is_down = False
        self.batches = 0
        self._calls = 0
        self._in_flight = 0
        self._peak_in_flight = 0
        self.num_answers = 0  # with status 200, also those with a fault in their text
        self._prompt_tokens = 0
        self._completion_tokens = 0
        self._outcomes: Counter[str] = Counter()
        self._admitted_again: Counter[int] = Counter()
        self._times_admitted: dict[bytes, int] = {}
        self._expired: set[bytes] = set()

    @contextlib.contextmanager
    def call(self) -> Iterator[CallRecord]:
        record = CallRecord()
        self._calls += 1
        self._in_flight += 1
        self._peak_in_flight = max(self._peak_in_flight, self._in_flight)
        try:
            yield record
        finally:
            self._outcomes[record.outcome] += 1
            self._in_flight -= 1

    def admit(self, key: bytes) -> int:
        """Counts an admitted request and returns how often it was admitted before."""
        times_before = self._times_admitted.get(key, 0)
        self._times_admitted[key] = times_before + 1
        self._admitted_again[times_before] += 1
        return times_before

    def expire_once(self, key: bytes) -> bool:
        """Notes a request that expired in a batch; returns False if it did so before, and must be answered now."""
        is_first = key not in self._expired
        self._expired.add(key)
        return is_first

    def times_admitted(self, key: bytes) -> int:
        return self._times_admitted.get(key, 0)

    def times_by_request(self) -> dict[str, int]:
        return {key.hex(): times for key, times in self._times_admitted.copy().items()}

    def add_answer(self, prompt_tokens: int, completion_tokens: int) -> None:
        self.num_answers += 1
        self._prompt_tokens += prompt_tokens
        self._completion_tokens += completion_tokens

    def statistics(self) -> MockJudgeStatistics:
        # Copying a dict is atomic for other threads; iterating over it is not.
        return MockJudgeStatistics(
            calls=self._calls,
            in_flight=self._in_flight,
            peak_in_flight=self._peak_in_flight,
            outcomes=dict(self._outcomes),
            admitted_again=dict(self._admitted_again),
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            is_down=self.is_down,
            batches=self.batches,
        )
