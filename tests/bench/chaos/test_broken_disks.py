"""Disks that fill up, change digits or lose the journal: the paid verdicts are handed over, and none is wrong."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from pathlib import Path

import pytest

from rewardflow.bench.chaos.broken_disks import (
    _change_scores,
    _with_other_digit,
    changed_bytes,
    changed_digits,
    full_disk,
    lost_journal,
)


@pytest.mark.parametrize("trial", [full_disk, changed_digits, changed_bytes, lost_journal])
def test_a_broken_disk_loses_no_paid_verdict(trial: object, tmp_path: Path) -> None:
    tried = asyncio.run(trial(4, tmp_path))  # type: ignore[operator]
    assert tried.count == 400
    assert tried.complaints == ()


def test_one_digit_of_a_stored_score_is_changed(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "journal.db") as database:
        database.execute("CREATE TABLE verdicts (id INTEGER, value REAL, verdict TEXT)")
        database.executemany("INSERT INTO verdicts VALUES (?, 0.5, ?)", [(n, '{"value":0.5}') for n in range(9)])
    database.close()
    assert _change_scores(tmp_path / "journal.db", random.Random(1), 4) == 4
    with sqlite3.connect(tmp_path / "journal.db") as database:
        texts = [text for (text,) in database.execute("SELECT verdict FROM verdicts")]
    database.close()
    assert sum(text != '{"value":0.5}' for text in texts) == 4


def test_a_changed_digit_is_another_digit() -> None:
    text = _with_other_digit('{"value":0.125,"x":3}', random.Random(5))
    assert text.endswith(',"x":3}')
    assert sum(a != b for a, b in zip(text, '{"value":0.125,"x":3}', strict=True)) == 1
