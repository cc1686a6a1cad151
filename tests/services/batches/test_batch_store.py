"""What was sent in batches is on disk, private, and belongs to one scope."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import pytest

from rewardflow.errors import JournalError, ServiceError
from rewardflow.services.batches.batch_store import BatchStore, StoredRequest

REQUESTS = [StoredRequest(f"key {i}", f"place {i}", 0.25 * i) for i in range(3)]


def test_a_later_session_finds_what_was_sent_and_answered(tmp_path: Path) -> None:
    first = BatchStore(tmp_path / "b", "run")
    first.begin("one", "http://here", time.time(), REQUESTS)
    first.created("one", "batch_7")
    first.collect([("key 0", {"choices": [1]}), ("key 1", ServiceError("expired"))])  # and then it is killed

    second = BatchStore(tmp_path / "b", "run")
    (found,) = second.load()
    assert (found.key, found.endpoint, found.id, found.is_over) == ("one", "http://here", "batch_7", False)
    assert set(found.requests) == {REQUESTS[0], REQUESTS[2]}
    assert second.answer("key 0") == {"choices": [1]}
    assert second.answer("key 1") is None
    second.end("one")
    (found,) = second.load()
    assert (found.is_over, found.requests) == (True, (REQUESTS[0],))
    second.forget(["key 0"])
    assert second.load() == []


def test_a_batch_that_was_not_created_is_forgotten(tmp_path: Path) -> None:
    store = BatchStore(tmp_path / "b", "run")
    store.begin("one", "http://here", time.time(), REQUESTS)
    assert store.load()[0].id is None
    store.forget_batch("one")
    assert store.load() == []


def test_another_run_or_judge_does_not_see_the_batch_and_an_old_one_is_removed(tmp_path: Path) -> None:
    BatchStore(tmp_path / "b", "run").begin("one", "http://here", time.time(), REQUESTS)
    assert BatchStore(tmp_path / "b", "other").load() == []
    BatchStore(tmp_path / "b", "other").begin("old", "http://here", time.time() - 31 * 86_400, REQUESTS[:0])
    assert BatchStore(tmp_path / "b", "other").load() == []
    assert len(BatchStore(tmp_path / "b", "run").load()) == 1


def test_the_file_is_private_and_one_that_is_no_database_is_refused(tmp_path: Path) -> None:
    BatchStore(tmp_path / "b", "run")
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o600
    (tmp_path / "text").write_text("this is no database, and long enough to be seen as such" * 50)
    with pytest.raises(JournalError, match="must be a database that can be written"):
        BatchStore(tmp_path / "text", "run")
