"""Entries for a journal, and what a journal holds, for tests that write and read one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rewardflow.reward.journal.reader import JournalReader, JournalRow
from rewardflow.reward.journal.verdict_rows import JournalEntry
from rewardflow.types import Reward, Rollout


def key_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def an_entry(
    number: int = 0, verdict: Reward | None = None, *, run: str = "run", at_s: float = 1.7e9, **inputs: Any
) -> JournalEntry:
    """The verdict with this number; `inputs` are fields of its rollout."""
    return JournalEntry(
        key=key_of(number),
        run=run,
        reward="judge",
        identity="c0ffee",
        rollout=Rollout(**{"group_id": "q1", "response": "It is 42.", **inputs}),
        verdict=verdict or Reward(value=0.5),
        at_s=at_s,
    )


def rows_of(path: Path) -> list[JournalRow]:
    with JournalReader(path) as reader:
        return list(reader.rows())
