"""What was sent in batches is on disk, private, and belongs to one scope."""

from __future__ import annotations

import sqlite3
import stat
import time
from pathlib import Path

import pytest

from rewardflow.errors import JournalError, ServiceError
from rewardflow.observe.redact import register_secret
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


def stored(path: Path, answer: object = None) -> BatchStore:
    """A store in which the first of three requests has its answer."""
    store = BatchStore(path, "run")
    store.begin("one", "http://here", time.time(), REQUESTS)
    store.created("one", "batch_7")
    store.collect([("key 0", {"choices": [1]} if answer is None else {"text": answer})])
    return store


def change(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(statement)


@pytest.mark.parametrize("name", [":memory:", "file:b"])
def test_a_name_that_means_something_to_sqlite_is_the_name_of_a_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    BatchStore(Path(name), "run").begin("one", "http://here", time.time(), REQUESTS)
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert len(BatchStore(Path(name), "run").load()) == 1


def test_a_key_that_the_service_sends_back_is_in_no_stored_answer(tmp_path: Path) -> None:
    secret = "zq9-SECRETVALUE-12345"
    register_secret(secret)
    store = stored(tmp_path / "b", answer=f"your key is {secret}")
    assert secret.encode() not in (tmp_path / "b").read_bytes()
    assert store.answer("key 0") == {"text": "your key is [redacted]"}
    store.begin("two", f"https://me:{secret}@here", time.time(), REQUESTS[2:])
    assert secret.encode() not in (tmp_path / "b").read_bytes()


def test_an_answer_that_changed_on_disk_is_not_believed(tmp_path: Path) -> None:
    stored(tmp_path / "b").close()
    change(tmp_path / "b", """UPDATE requests SET answer = CAST('{"choices":[9]}' AS BLOB) WHERE key = 'key 0'""")
    assert BatchStore(tmp_path / "b", "run").answer("key 0") is None


def test_an_answer_that_is_no_json_object_is_not_believed_with_or_without_a_checksum(tmp_path: Path) -> None:
    stored(tmp_path / "b").close()
    for broken in ("{", "7"):
        change(tmp_path / "b", f"UPDATE requests SET answer = '{broken}', answer_crc32 = NULL")
        assert BatchStore(tmp_path / "b", "run").answer("key 0") is None


@pytest.mark.parametrize("column", ["place = 'elsewhere'", "reserved_usd = 7.5"])
def test_a_request_that_changed_on_disk_costs_that_request_only(column: str, tmp_path: Path) -> None:
    stored(tmp_path / "b").close()
    change(tmp_path / "b", f"UPDATE requests SET {column} WHERE key = 'key 2'")
    (found,) = BatchStore(tmp_path / "b", "run").load()
    assert set(found.requests) == set(REQUESTS[:2])


@pytest.mark.parametrize(
    "column", ["id = 'batch_8'", "endpoint = 'http://there'", "is_over = 1", "made_s = made_s - 1"]
)
def test_a_batch_that_changed_on_disk_is_not_found(column: str, tmp_path: Path) -> None:
    stored(tmp_path / "b").close()
    change(tmp_path / "b", f"UPDATE batches SET {column}")
    assert BatchStore(tmp_path / "b", "run").load() == []


def test_a_file_of_an_earlier_version_has_no_checksums_and_is_believed(tmp_path: Path) -> None:
    stored(tmp_path / "b").close()
    for table, column in (("batches", "crc32"), ("requests", "crc32"), ("requests", "answer_crc32")):
        change(tmp_path / "b", f"ALTER TABLE {table} DROP COLUMN {column}")
    store = BatchStore(tmp_path / "b", "run")
    assert set(store.load()[0].requests) == set(REQUESTS)
    assert store.answer("key 0") == {"choices": [1]}
