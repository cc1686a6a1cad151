"""Turns verdicts into rows of the journal's one table, and rows into verdicts again.

Always true: any entry of the right types makes a row, whatever it holds; finite numbers that fit come back exactly;
with `store="hash"` a row holds no text of its rollout or verdict; `look_up` returns no verdict that changed on disk, or
whose cost did.

A row has its numbers in columns, for queries, and its texts in two JSON documents, `verdict` and `rollout`. Values that
JSON cannot hold come back in JSON's form: tuples as lists, odd objects as their repr, NaN as null. `row_checksums` adds
the checksums of a row.

The sqlite3 module releases the GIL at every step of a statement and may wait 5 ms to get it back from a busy loop. So
each function here runs one statement with one step for many rows: `insert` takes all rows, `look_up` returns one text.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson

from rewardflow.observe.redact import hide_in_record, is_free_of_secrets
from rewardflow.reward.journal.row_checksums import CHECKSUM_COLUMNS, TableRow, row_checksums, verdict_checksum
from rewardflow.types import EMPTY, FailureKind, Reward, Rollout

Store = Literal["full", "hash"]

COLUMNS: Final = (
    "key, at_s, run, step, group_id, sample_index, reward, identity, value, kind, attempts, latency_s, cost_usd, "
    "tokens, verdict, rollout"
)
SCORED: Final = "value IS NOT NULL"
COST_IS_WHOLE: Final = "(cost_copy_usd IS NULL OR cost_usd IS cost_copy_usd)"
REPLAYED_KINDS: Final[tuple[FailureKind, ...]] = ("timeout", "rate_limited", "service", "unparsable", "user_error")
TEXT_NOT_STORED: Final = "(text not stored)"

_INSERTED: Final = f"{COLUMNS}, {CHECKSUM_COLUMNS}"
_NUM_COLUMNS: Final = _INSERTED.count(",") + 1
# Each row as `KEY,CHECKSUM,COST_IS_WHOLE,BYTES:DOCUMENT`, without a separator after it.
_PACKED: Final = (
    f"CAST(group_concat(hex(key) || ',' || coalesce(verdict_crc32, '') || ',' || {COST_IS_WHOLE} || ',' || "
    "length(CAST(verdict AS BLOB)) || ':' || verdict, '') AS BLOB)"
)
_REPLAYED: Final = f"({SCORED} OR kind IN ({', '.join(repr(kind) for kind in REPLAYED_KINDS)}))"
_VERDICT_TEXTS: Final = ("error", "query", "explanation", "extras", "traceback")
_NAMED: Final = (*_VERDICT_TEXTS, "components")  # fields of a verdict with texts or names of the user's choice
_ROLLOUT_TEXTS: Final = ("prompt", "messages", "response", "ground_truth", "data_source", "extra_info")
_JSON_OPTIONS: Final = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
_MAX_DEPTH: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """One verdict with everything that the journal stores about it. Lookups find it by `key`."""

    key: bytes
    run: str
    reward: str
    identity: str
    rollout: Rollout
    verdict: Reward
    at_s: float


@dataclass(frozen=True, slots=True)
class FoundVerdicts:
    """What a lookup found, by key, and how many rows it found broken."""

    rewards: Mapping[bytes, Reward]
    num_broken: int = 0


# -- the table --


def max_rows_a_statement(connection: sqlite3.Connection) -> int:
    return connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // _NUM_COLUMNS


def insert(connection: sqlite3.Connection, rows: Sequence[TableRow]) -> None:
    """Inserts rows with one statement, which is one transaction: all are on disk when it returns, none if it raises."""
    places = f"({', '.join('?' * _NUM_COLUMNS)})"
    connection.execute(
        f"INSERT INTO verdicts ({_INSERTED}) VALUES {', '.join([places] * len(rows))}",
        [value for row in rows for value in row],
    )


def look_up(connection: sqlite3.Connection, keys: Sequence[bytes], *, failures: bool) -> FoundVerdicts:
    """Returns the newest reusable verdict of each key, failed ones only with `failures`.

    SQLite returns all as one blob and only concatenates the documents, so their bytes can be checked.
    """
    newest = (
        f"SELECT max(id) FROM verdicts WHERE key IN ({', '.join('?' * len(keys))}) "
        f"AND {_REPLAYED if failures else SCORED} GROUP BY key"
    )
    (blob,) = connection.execute(f"SELECT {_PACKED} FROM verdicts WHERE id IN ({newest})", keys).fetchone()
    rewards: dict[bytes, Reward] = {}
    num_broken = start = 0
    while blob is not None and start < len(blob):
        end = blob.index(b":", start)
        key_hex, checksum, cost_is_whole, num_bytes = blob[start:end].split(b",")
        key, start = bytes.fromhex(key_hex.decode()), end + 1 + int(num_bytes)
        reward = _checked_reward(key, checksum, blob[end + 1 : start]) if cost_is_whole == b"1" else None
        if reward is None:
            num_broken += 1
        else:
            rewards[key] = reward
    return FoundVerdicts(rewards, num_broken)


def _checked_reward(key: bytes, checksum: bytes, document: bytes) -> Reward | None:
    """Returns None for a broken row. A row of an earlier version has no checksum, and is believed if it can be read."""
    if checksum and int(checksum) != verdict_checksum(key, document):
        return None
    return _readable_reward(document)


# -- documents --


def row_of(entry: JournalEntry, store: Store) -> TableRow:
    """Returns the entry's values in the order of `COLUMNS`, then its checksums."""
    rollout, reward = entry.rollout, entry.verdict
    verdict, inputs = _verdict_document(reward), _rollout_document(rollout)
    if store == "hash":
        verdict, inputs = _with_digests(verdict, _VERDICT_TEXTS), _with_digests(inputs, _ROLLOUT_TEXTS)
        verdict["error"] = None if reward.error is None else TEXT_NOT_STORED
    row: TableRow = (
        bytes(entry.key),
        float(entry.at_s),
        as_text(entry.run),
        _int64(rollout.step),
        as_text(rollout.group_id),
        _int64(rollout.index),
        as_text(entry.reward),
        as_text(entry.identity),
        verdict["value"],
        reward.kind,
        verdict["attempts"],
        verdict["latency_s"],
        float(reward.cost_usd),
        _int64(reward.tokens),
        _document(verdict, _NAMED),
        _document(inputs, _ROLLOUT_TEXTS),
    )
    return row + row_checksums(row)


def _document(fields: Mapping[str, Any], texts: Sequence[str]) -> str:
    """Returns the JSON of a document, without secret values in its texts. Numbers and kinds stay as they are."""
    document = _json(fields)
    if is_free_of_secrets(document):
        return document
    return _json({name: _without_secrets(value) if name in texts else value for name, value in fields.items()})


def _without_secrets(value: Any) -> Any:
    """Looks at the value as JSON holds it, because the texts of odd objects and bytes appear only there."""
    return hide_in_record(orjson.loads(_json(value)))


def _verdict_document(reward: Reward) -> dict[str, Any]:
    document = {
        "value": None if reward.value is None else float(reward.value),
        "kind": reward.kind,
        "error": reward.error,
        "imputed": reward.imputed,
        "components": {name: None if part is None else float(part) for name, part in reward.components.items()},
        "extras": reward.extras,
        "query": reward.query,
        "explanation": reward.explanation,
        "attempts": _int64(reward.attempts),
        "latency_s": float(reward.latency_s),
    }
    if reward.traceback is not None:
        document["traceback"] = reward.traceback
    return document


def _rollout_document(rollout: Rollout) -> dict[str, Any]:
    return {
        "group_size": rollout.group_size,
        "policy_version": rollout.policy_version,
        "prompt": rollout.prompt,
        "messages": rollout.messages,
        "response": rollout.response,
        "ground_truth": rollout.ground_truth,
        "data_source": rollout.data_source,
        "extra_info": rollout.extra_info,
    }


def _reward(document: Mapping[str, Any]) -> Reward:
    """Returns a stored verdict, at no cost, because it was paid for before."""
    return Reward(
        value=document["value"],
        kind=document["kind"],
        error=document["error"],
        imputed=document["imputed"],
        components=document["components"],
        extras=document.get("extras") or EMPTY,
        query=document.get("query"),
        explanation=document.get("explanation"),
        attempts=document["attempts"],
        latency_s=document["latency_s"],
        cached=True,
        traceback=document.get("traceback"),
    )


def _readable_reward(document: bytes) -> Reward | None:
    try:
        return _reward(orjson.loads(document))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def is_readable_verdict(document: bytes) -> bool:
    return _readable_reward(document) is not None


def is_json(document: bytes) -> bool:
    try:
        orjson.loads(document)
    except ValueError:
        return False
    return True


def failed_document(kind: FailureKind, error: str) -> str:
    """Returns the document of a failed verdict, as a row holds it."""
    return _json(_verdict_document(Reward(kind=kind, error=error)))


def _with_digests(document: Mapping[str, Any], private: Sequence[str]) -> dict[str, Any]:
    """Replaces private texts by digests: equal texts can still be recognised, but no text can be read."""
    kept = {name: value for name, value in document.items() if name not in private}
    digests = {name: _digest(document[name]) for name in private if document.get(name) is not None}
    return {**kept, "digests": digests}


def _digest(value: object) -> str:
    text = as_text(value) if isinstance(value, str) else _json(value)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


# -- what SQLite and JSON take --


def _int64(value: int) -> int:
    """Bounds a number: an absurd count of tokens must not lose a verdict that was paid for."""
    return max(-(2**63), min(2**63 - 1, int(value)))


def as_text(value: object) -> str:
    """Returns text that can be encoded: policies emit halves of surrogate pairs, which no encoding accepts."""
    text = value if isinstance(value, str) else _safe_repr(value)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _json(value: object) -> str:
    try:
        return orjson.dumps(value, default=_to_json_type, option=_JSON_OPTIONS).decode()
    except (TypeError, ValueError):  # broken unicode, numbers beyond 64 bits, cycles, odd keys
        return orjson.dumps(_plain(value, ())).decode()


def _to_json_type(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence | AbstractSet) and not isinstance(value, bytes | bytearray | memoryview):
        return list(value)
    return _safe_repr(value)


def _plain(value: object, outer: tuple[int, ...]) -> object:
    """Rebuilds a value from types that JSON always accepts; slow, for values that orjson refused."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return as_text(value)
    if isinstance(value, Mapping | list | tuple | AbstractSet):
        if id(value) in outer or len(outer) >= _MAX_DEPTH:
            return "(circular or nested too deeply)"
        within = (*outer, id(value))
        if isinstance(value, Mapping):
            return {as_text(key): _plain(item, within) for key, item in value.items()}
        return [_plain(item, within) for item in value]
    try:
        return orjson.Fragment(orjson.dumps(value, option=_JSON_OPTIONS))
    except (TypeError, ValueError):
        return as_text(_safe_repr(value))


def _safe_repr(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # raised by the user's own `__repr__`
        return f"<{type(value).__name__}>"
