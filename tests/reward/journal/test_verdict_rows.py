"""What goes into a row comes out of it, as exactly as SQLite and JSON can."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from journal_entries import an_entry, key_of, rows_of

from rewardflow.observe.redact import REDACTED, register_secret
from rewardflow.reward.journal.database import open_for_writing
from rewardflow.reward.journal.saved_costs import read_saved_costs
from rewardflow.reward.journal.verdict_rows import (
    REPLAYED_KINDS,
    JournalEntry,
    Store,
    insert,
    look_up,
    max_rows_a_statement,
    row_of,
)
from rewardflow.types import FAILURE_KINDS, Reward


def there_and_back(
    path: Path, *entries: JournalEntry, failures: bool = True, store: Store = "full"
) -> Mapping[bytes, Reward]:
    with contextlib.closing(open_for_writing(path, lock_timeout_s=0)) as connection:
        insert(connection, [row_of(entry, store) for entry in entries])
    with contextlib.closing(open_for_writing(path, lock_timeout_s=0)) as connection:
        return look_up(connection, [entry.key for entry in entries], failures=failures).rewards


def spent(path: Path, run: str) -> float:
    with contextlib.closing(open_for_writing(path, lock_timeout_s=0)) as connection:
        return read_saved_costs(connection, run).usd


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


# -- what is found --


def test_a_verdict_is_found_again_as_it_was_but_at_no_cost(path: Path) -> None:
    verdict = Reward(
        value=0.1 + 0.2,
        components={"style": 1 / 3, "facts": None},
        extras={"votes": [1, 2], "note": "né\n"},
        query="Is it right?",
        explanation="Yes: \x00 ünï 🎉",
        attempts=3,
        latency_s=1.25,
        cost_usd=0.002,
        tokens=812,
    )
    found = there_and_back(path, an_entry(1, verdict))[key_of(1)]
    assert (found.value, found.components, found.extras) == (0.1 + 0.2, {"style": 1 / 3, "facts": None}, verdict.extras)
    assert (found.query, found.explanation) == (verdict.query, verdict.explanation)
    assert (found.attempts, found.latency_s, found.cached) == (3, 1.25, True)
    assert (found.cost_usd, found.tokens) == (0.0, 0)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30))
def test_every_finite_number_comes_back_exactly(tmp_path: Path, values: list[float]) -> None:
    path = tmp_path / f"{os.urandom(8).hex()}.db"
    entries = [an_entry(i, Reward(value=value, components={"a": value})) for i, value in enumerate(values)]
    found = there_and_back(path, *entries)
    for i, value in enumerate(values):
        reward = found[key_of(i)]
        assert reward.value is not None
        assert (reward.value, math.copysign(1, reward.value)) == (value, math.copysign(1, value))
        assert reward.components == {"a": value}
    assert [row.value for row in rows_of(path)] == values


@pytest.mark.parametrize("kind", FAILURE_KINDS)
def test_delivered_failures_are_replayed_and_undecided_ones_are_only_stored(path: Path, kind: Any) -> None:
    entry = an_entry(1, Reward(kind=kind, error="it broke", cost_usd=0.25))
    found = there_and_back(path, entry)
    if kind in REPLAYED_KINDS:
        assert (found[entry.key].kind, found[entry.key].error) == (kind, "it broke")
    else:
        assert found == {}
    assert [row.cost_usd for row in rows_of(path)] == [0.25]
    assert spent(path, "run") == 0.25


def test_failures_are_left_out_when_only_scores_are_wanted(path: Path) -> None:
    entries = [an_entry(1, Reward(kind="timeout")), an_entry(2), an_entry(2, Reward(kind="service"))]
    assert there_and_back(path, *entries, failures=False).keys() == {key_of(2)}


def test_the_newest_reusable_row_of_a_key_is_found_and_all_are_kept(path: Path) -> None:
    verdicts = [Reward(value=1.0), Reward(value=2.0), Reward(kind="cancelled")]
    assert there_and_back(path, *[an_entry(1, verdict) for verdict in verdicts])[key_of(1)].value == 2.0
    assert [row.value for row in rows_of(path)] == [1.0, 2.0, None]


def test_what_a_run_has_spent_counts_every_row_of_it_and_no_other(path: Path) -> None:
    paid = Reward(value=1.0, cost_usd=0.5)
    there_and_back(path, an_entry(1, paid), an_entry(1, paid), an_entry(3, paid, run="another \ud800"))
    assert [spent(path, run) for run in ("run", "another \ud800", "new")] == [1.0, 0.5, 0.0]


def test_one_statement_takes_as_many_rows_as_it_says_and_no_more(path: Path) -> None:
    with contextlib.closing(open_for_writing(path, lock_timeout_s=0)) as connection:
        most = max_rows_a_statement(connection)
        insert(connection, [row_of(an_entry(), "full")] * most)
        assert len(rows_of(path)) == most


# -- what is stored --


class Odd:
    def __repr__(self) -> str:
        return "an odd thing"


class Worse:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def circular() -> list[object]:
    inner: list[object] = []
    inner.append(inner)
    return inner


@pytest.mark.parametrize(
    ("odd", "stored"),
    [
        (Odd(), "an odd thing"),
        (Worse(), "<Worse>"),
        ({1: {"a"}, (2, 3): b"x"}, {"1": ["a"], "(2, 3)": "b'x'"}),
        (10**30, str(10**30)),
        (math.nan, None),
        ("half a pair: \ud83d", "half a pair: ?"),
        ({"\udc00": ["\ud800", 1.5]}, {"?": ["?", 1.5]}),
        (circular(), ["(circular or nested too deeply)"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_odd_extras_are_stored_as_well_as_json_can(path: Path, odd: object, stored: object) -> None:
    entry = an_entry(1, Reward(value=1.0, extras={"odd": odd}), ground_truth=odd)
    assert there_and_back(path, entry)[entry.key].extras == {"odd": stored}
    assert rows_of(path)[0].rollout["ground_truth"] == stored


def test_broken_unicode_is_stored_with_marks_in_place_of_what_is_broken(path: Path) -> None:
    broken = "a\ud800b"
    entry = an_entry(
        1, Reward(kind="user_error", error=broken, query=broken, explanation=broken), group_id=broken, response=broken
    )
    found = there_and_back(path, entry)[entry.key]
    assert (found.error, found.query, found.explanation) == ("a?b", "a?b", "a?b")
    assert (rows_of(path)[0].group_id, rows_of(path)[0].rollout["response"]) == ("a?b", "a?b")


def test_a_row_has_no_secret_in_names_bytes_objects_or_deep_values(path: Path) -> None:
    secret = "zq9-SECRETVALUE-12345"
    register_secret(secret)
    deep: object = secret
    for _ in range(100):
        deep = [deep]
    extras = {"bytes": secret.encode(), "object": SimpleNamespace(key=secret), "deep": deep, secret: 1, "plain": 0.5}
    entry = an_entry(1, Reward(value=1.0, components={secret: 0.25}, extras=extras))
    (found,) = there_and_back(path, entry).values()
    assert secret.encode() not in path.read_bytes()
    assert (found.value, found.components, found.extras["plain"]) == (1.0, {REDACTED: 0.25}, 0.5)


def test_store_hash_keeps_numbers_and_digests_but_no_text(path: Path) -> None:
    secret = "S3CRET"
    scored = Reward(
        value=0.5, components={"a": 1.0}, query=secret, explanation=secret, extras={"x": secret}, attempts=2
    )
    failed = Reward(kind="service", error=secret)
    inputs: dict[str, Any] = {
        "prompt": secret,
        "response": secret,
        "messages": [{"role": "user", "content": secret}],
        "ground_truth": secret,
        "data_source": secret,
        "extra_info": {"x": secret},
    }
    entries = [an_entry(1, scored, **inputs), an_entry(2, failed, **inputs)]
    found = there_and_back(path, *entries, store="hash")
    assert found[key_of(1)] == Reward(value=0.5, components={"a": 1.0}, attempts=2, cached=True)
    assert (found[key_of(2)].kind, found[key_of(2)].error) == ("service", "(text not stored)")
    digests = rows_of(path)[0].rollout["digests"]
    assert digests["prompt"] == digests["response"] != digests["messages"]
    assert all(secret.encode() not in file.read_bytes() for file in path.parent.iterdir())


def test_an_absurd_count_of_tokens_is_bounded_and_does_not_lose_the_verdict(path: Path) -> None:
    absurd = an_entry(1, Reward(value=0.5, tokens=10**30, attempts=2**63))
    assert there_and_back(path, absurd)[key_of(1)].attempts == 2**63 - 1
    assert rows_of(path)[0].tokens == 2**63 - 1
