"""The results of a batch are read whatever their order, also if a service repeats, leaves out or invents some."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from rewardflow import clock
from rewardflow.errors import CallError, ServiceError
from rewardflow.services.batches.batch_api import BatchProgress, Outcome, SentBatch, key_of
from rewardflow.services.batches.batch_sender import Batch, BatchSender
from rewardflow.services.batches.batch_store import BatchStore, StoredRequest
from rewardflow.services.batches.settings import BatchSettings

ANSWER = {"choices": []}
OTHER = {"choices": [1]}


@dataclass
class ScriptedBatches:
    """A service whose batch is over at once, with these results. It breaks off before the end as often as told."""

    rows: Sequence[tuple[str, Outcome]]
    problem: CallError | None = None
    breaks_off: int = 0

    def encode(self, key: str, payload: Mapping[str, Any]) -> bytes:
        return b"{}"

    async def create(self, key: str, parts: Sequence[bytes]) -> str:
        return "batch"

    async def find(self, sent: SentBatch) -> str | None:
        return None

    async def progress(self, batch_id: str) -> BatchProgress:
        return BatchProgress(True, (batch_id,), self.problem)

    async def results(self, progress: BatchProgress) -> AsyncGenerator[tuple[str, Outcome], None]:
        self.breaks_off -= 1
        for number, row in enumerate(self.rows):
            if self.breaks_off >= 0 and number == len(self.rows) - 1:
                raise ServiceError("the connection broke")
            yield row

    async def cancel(self, batch_id: str) -> None: ...


def collected(service: ScriptedBatches, *keys: str) -> tuple[dict[str, Outcome], BatchStore]:
    store = BatchStore(None, "test")

    async def run() -> dict[str, Outcome]:
        batch = Batch("key", "http://127.0.0.1:1")
        for key in keys:
            batch.add(StoredRequest(key, "place", 0.0), b"{}")
        await BatchSender(service, store, BatchSettings(), frozenset).finish(batch)
        return batch.outcomes

    return clock.run(run()), store


def test_rows_in_another_order_belong_to_their_requests() -> None:
    outcomes, _ = collected(ScriptedBatches([("c", ANSWER), ("a", OTHER), ("b", ANSWER)]), "a", "b", "c")
    assert outcomes == {"a": OTHER, "b": ANSWER, "c": ANSWER}


@pytest.mark.parametrize("rows", [[("a", ANSWER), ("a", OTHER)], [("a", ServiceError("no")), ("a", ANSWER)]])
def test_of_two_rows_about_one_request_the_first_answer_counts(rows: list[tuple[str, Outcome]]) -> None:
    outcomes, store = collected(ScriptedBatches(rows), "a")
    assert outcomes["a"] == ANSWER
    assert store.answer("a") == ANSWER


def test_an_error_after_an_answer_does_not_make_a_paid_answer_disappear() -> None:
    outcomes, store = collected(ScriptedBatches([("a", ANSWER), ("a", ServiceError("expired"))]), "a")
    assert outcomes["a"] == ANSWER
    assert store.answer("a") == ANSWER


def test_a_row_that_nobody_asked_for_is_ignored_and_a_missing_one_is_an_error_of_its_own() -> None:
    outcomes, _ = collected(ScriptedBatches([("of another", ANSWER), ("a", ANSWER)]), "a", "b")
    assert outcomes["a"] == ANSWER
    assert isinstance(outcomes["b"], ServiceError)
    assert "ended without a result" in str(outcomes["b"])
    assert set(outcomes) == {"a", "b"}


def test_a_file_that_breaks_off_for_ever_keeps_the_answers_that_were_read_and_sends_none_again() -> None:
    service = ScriptedBatches([("a", ANSWER), ("b", ANSWER)], breaks_off=10**6)
    outcomes, store = collected(service, "a", "b")
    unread = outcomes["b"]
    assert outcomes["a"] == ANSWER
    assert isinstance(unread, ServiceError)
    assert "could not be read for 24 hours" in str(unread)
    assert not unread.retryable
    assert store.answer("a") == ANSWER


def test_results_that_cannot_be_read_for_hours_are_read_when_the_service_is_back() -> None:
    outcomes, _ = collected(ScriptedBatches([("a", ANSWER), ("b", OTHER)], breaks_off=100), "a", "b")
    assert outcomes == {"a": ANSWER, "b": OTHER}


def test_a_file_that_breaks_off_once_is_read_again() -> None:
    outcomes, _ = collected(ScriptedBatches([("a", ANSWER), ("b", OTHER)], breaks_off=1), "a", "b")
    assert outcomes == {"a": ANSWER, "b": OTHER}


@pytest.mark.parametrize("line", [None, [], {}, {"custom_id": None}, {"custom_id": 7}])
def test_a_line_without_a_key_is_about_no_request(line: Any) -> None:
    assert key_of(line) is None
