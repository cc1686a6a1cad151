"""Finds the newest rollouts of a run whose texts contain a word, in rollouts/step_*.parquet or else in the journal.

Always true: the amount read is bounded, however long the run, and the result says how far back it looked. The search
ignores case, and looks at the texts that the page shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module  # pyarrow has no types here: loaded late, it is `Any`
from pathlib import Path

from rewardflow.errors import JournalError
from rewardflow.extras import install_command
from rewardflow.observe.run_directory import ROLLOUTS_FOLDER
from rewardflow.report.rollouts.rollout_sample import (
    MAX_ROLLOUTS,
    RolloutSample,
    SampledRollout,
    check_version,
    journal_of,
    rollout_files,
    rollout_of_parts,
    rollout_of_row,
)
from rewardflow.report.run_data import RunData
from rewardflow.reward.journal.reader import JournalReader, JournalRow

_MAX_FILES = 64
_MAX_ROWS = 20_000
_ROWS_A_PAGE = 500


def find_rollouts(run: RunData, text: str, *, at_most: int = MAX_ROLLOUTS) -> RolloutSample:
    """Returns the newest rollouts that contain the text, the newest first."""
    wanted = text.lower()
    files = rollout_files(run.directory.path / ROLLOUTS_FOLDER)
    if files:
        return _in_files(files, wanted, at_most)
    journal = journal_of(run)
    if journal is None:
        return RolloutSample(rollouts=(), origin="The run keeps neither rollouts nor a journal in its directory.")
    name = run.agent_settings.get("run")
    try:
        with JournalReader(journal) as reader:
            return _in_journal(reader, name if isinstance(name, str) else None, wanted, at_most)
    except JournalError as error:
        return RolloutSample(rollouts=(), origin=f"The journal could not be read: {error}")


def _in_files(files: Sequence[Path], wanted: str, at_most: int) -> RolloutSample:
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError:
        return RolloutSample(rollouts=(), origin=f"Reading rollouts needs pyarrow: {install_command('parquet')}")
    newest = files[-_MAX_FILES:][::-1]
    found: list[SampledRollout] = []
    for path in newest:
        try:
            table = parquet.read_table(path)
        except (OSError, ValueError):  # a file that is damaged or being replaced has nothing to find
            continue
        check_version(table.schema.metadata or {}, path)
        found += [one for row in table.to_pylist() if _contains(one := rollout_of_row(row), wanted)]
        if len(found) >= at_most:
            break
    origin = f"{min(len(found), at_most)} rollouts of the latest {len(newest)} of {len(files)} kept steps contain it."
    return RolloutSample(rollouts=tuple(found[:at_most]), origin=origin)


def _in_journal(reader: JournalReader, run: str | None, wanted: str, at_most: int) -> RolloutSample:
    last_id = reader.last_id()
    first_id = max(1, last_id - _MAX_ROWS + 1)
    by_rollout: dict[tuple[int, str, int], list[JournalRow]] = {}
    matching: list[tuple[int, str, int]] = []
    for end in range(last_id, first_id - 1, -_ROWS_A_PAGE):
        for row in reversed(reader.between(max(first_id, end - _ROWS_A_PAGE + 1), end)):
            if run is not None and row.run != run:
                continue
            key = (row.step, row.group_id, row.index)
            parts = by_rollout.setdefault(key, [])
            parts.insert(0, row)  # read backwards: the last row of a reward counts
            if len(parts) == 1 and _contains(rollout_of_parts(parts), wanted):
                matching.append(key)
        if len(matching) >= at_most:
            break
    origin = f"{min(len(matching), at_most)} rollouts of the latest {last_id - first_id + 1:,} verdicts contain it."
    return RolloutSample(rollouts=tuple(rollout_of_parts(by_rollout[key]) for key in matching[:at_most]), origin=origin)


def _contains(rollout: SampledRollout, wanted: str) -> bool:
    texts = (rollout.question, rollout.answer, rollout.query, rollout.explanation, rollout.error)
    return any(wanted in text.lower() for text in texts)
