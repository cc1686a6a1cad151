"""Writes rollouts with their verdicts as parquet files, one a step, for people and for reports.

Always true: a file is complete or not there, and has the same columns of the same types as every other, under a schema
version in its metadata; texts are what the model and the judge said, but for halves of surrogate pairs, which UTF-8
cannot hold and which are written as `\\ud83d`; where the journal keeps no texts (`limits.store: hash`), neither do
these files. A thread of its own writes, and nobody waits for it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import itertools
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardflow.answers.plain_json import json_text
from rewardflow.flow.records import JudgedRollout, num_sampled_tokens
from rewardflow.observe.private_file import replacing
from rewardflow.observe.run_directory import ROLLOUTS_VERSION, ROLLOUTS_VERSION_KEY
from rewardflow.runtime.records.background_writer import BackgroundStatistics, BackgroundWriter
from rewardflow.settings.run_settings import RolloutSettings

logger = logging.getLogger(__name__)

MOST_WAITING = 4  # steps: each may be thousands of long texts
_FILE = re.compile(r"step_(\d{6,})\.parquet")

Value = Callable[[int, JudgedRollout], Any]


@dataclass(frozen=True, slots=True)
class ParquetColumn:
    """A column. `kind` is as pyarrow spells it, or `components`, a map from text to number."""

    kind: str
    value: Value


COLUMNS: dict[str, ParquetColumn] = {
    "step": ParquetColumn("int64", lambda step, one: step),
    "group_id": ParquetColumn("string", lambda step, one: _text(one.rollout.group_id)),
    "index": ParquetColumn("int32", lambda step, one: one.rollout.index),
    "prompt": ParquetColumn("string", lambda step, one: _text(one.rollout.prompt)),
    "messages": ParquetColumn(
        "string", lambda step, one: _json(list(one.rollout.messages)) if one.rollout.messages else None
    ),
    "response": ParquetColumn("string", lambda step, one: _text(one.rollout.response)),
    "ground_truth": ParquetColumn("string", lambda step, one: _text_or_json(one.rollout.ground_truth)),
    "data_source": ParquetColumn("string", lambda step, one: _text_or_json(one.rollout.data_source)),
    "score": ParquetColumn("float64", lambda step, one: one.reward.value),
    "status": ParquetColumn("string", lambda step, one: one.reward.status),
    "kind": ParquetColumn("string", lambda step, one: one.reward.kind),
    "error": ParquetColumn("string", lambda step, one: _text(one.reward.error)),
    "imputed": ParquetColumn("bool", lambda step, one: one.reward.imputed),
    "components": ParquetColumn("components", lambda step, one: _components(one)),
    "query": ParquetColumn("string", lambda step, one: _text(one.reward.query)),
    "explanation": ParquetColumn("string", lambda step, one: _text(one.reward.explanation)),
    "latency_s": ParquetColumn("float64", lambda step, one: one.reward.latency_s),
    "cost_usd": ParquetColumn("float64", lambda step, one: one.reward.cost_usd),
    "attempts": ParquetColumn("int64", lambda step, one: one.reward.attempts),
    "cached": ParquetColumn("bool", lambda step, one: one.reward.cached),
    "advantage": ParquetColumn("float64", lambda step, one: _mean(one.advantage)),
    "policy_version": ParquetColumn("int64", lambda step, one: one.rollout.policy_version),
    "staleness": ParquetColumn("int64", lambda step, one: _staleness(step, one)),
    "num_tokens": ParquetColumn("int64", lambda step, one: num_sampled_tokens(one.rollout)),
    "trained": ParquetColumn("bool", lambda step, one: one.why_not is None and one.advantage is not None),
    "why_not": ParquetColumn("string", lambda step, one: one.why_not),
}


TEXTS = frozenset({"prompt", "messages", "response", "ground_truth", "query", "explanation"})


class RolloutFiles:
    """Call `files.write(step, rollouts)`, and close it. Without `keeps_texts`, `TEXTS` are null."""

    def __init__(
        self, folder: Path, settings: RolloutSettings, *, next_step: int = 0, keeps_texts: bool = True
    ) -> None:
        """Removes files of the steps from `next_step` on: those steps will be trained again."""
        self.folder = folder
        self._settings = settings
        self._keeps_texts = keeps_texts
        folder.mkdir(mode=0o700, exist_ok=True)
        for path in folder.iterdir():
            found = _FILE.fullmatch(path.name)
            if path.name.endswith(".tmp") or (found is not None and int(found[1]) >= next_step):
                path.unlink()
        self._writer: BackgroundWriter[tuple[int, list[JudgedRollout]]] = BackgroundWriter(
            "rollouts", self._opened, most_waiting=MOST_WAITING
        )

    def write(self, step: int, rollouts: Iterable[JudgedRollout]) -> None:
        """Writes one step's rollouts if the settings keep that step; never waits, never raises."""
        if self._settings.every is not None and step % self._settings.every == 0:
            self._writer.put((step, in_whole_groups(rollouts, self._settings.limit)))

    def statistics(self) -> BackgroundStatistics:
        return self._writer.statistics()

    def flush(self, timeout_s: float) -> bool:
        return self._writer.flush(timeout_s)

    def close(self, timeout_s: float) -> None:
        self._writer.close(timeout_s)

    # -- on the thread -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Callable[[tuple[int, list[JudgedRollout]]], None]]:
        importlib.import_module("pyarrow.parquet")
        keeps_texts = self._keeps_texts
        yield lambda item: write_file(file_of(self.folder, item[0]), item[0], item[1], keeps_texts=keeps_texts)


def file_of(folder: Path, step: int) -> Path:
    return folder / f"step_{step:06}.parquet"


def is_installed() -> bool:
    return importlib.util.find_spec("pyarrow") is not None


def in_whole_groups(rollouts: Iterable[JudgedRollout], limit: int | None) -> list[JudgedRollout]:
    """Returns as many whole groups as fit, at least one: half a group would not explain its advantages."""
    kept: list[JudgedRollout] = []
    for _, group in itertools.groupby(rollouts, lambda one: one.rollout.group_id):
        members = list(group)
        if limit is not None and kept and len(kept) + len(members) > limit:
            break
        kept += members
    return kept


def write_file(path: Path, step: int, rollouts: Sequence[JudgedRollout], *, keeps_texts: bool = True) -> None:
    """Writes the file atomically."""
    pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    fields = _schema(pyarrow)
    values = {
        name: [column.value(step, one) if keeps_texts or name not in TEXTS else None for one in rollouts]
        for name, column in COLUMNS.items()
    }
    arrays = [pyarrow.array(column, type=fields.field(name).type) for name, column in values.items()]
    with replacing(path) as file:
        parquet.write_table(pyarrow.Table.from_arrays(arrays, schema=fields), file, compression="zstd")


def _schema(pyarrow: Any) -> Any:
    components = pyarrow.map_(pyarrow.string(), pyarrow.float64())
    types = {
        name: components if column.kind == "components" else pyarrow.type_for_alias(column.kind)
        for name, column in COLUMNS.items()
    }
    return pyarrow.schema(list(types.items()), metadata={ROLLOUTS_VERSION_KEY: str(ROLLOUTS_VERSION).encode()})


# -- values --


def _text(text: str | None) -> str | None:
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()


def _json(value: Any) -> str:
    return json_text(value)


def _text_or_json(value: Any) -> str | None:
    """Returns a text as it is, anything else as JSON."""
    return _text(value) if value is None or isinstance(value, str) else _json(value)


def _components(one: JudgedRollout) -> list[tuple[str, float | None]]:
    return [(_text(name) or "", value) for name, value in one.reward.components.items()]


def _mean(advantage: Any) -> float | None:
    """Returns the mean over the tokens if each has its own value."""
    plain = advantage.tolist() if hasattr(advantage, "tolist") else advantage
    if isinstance(plain, Sequence):
        return sum(plain) / len(plain) if plain else None
    return None if plain is None else float(plain)


def _staleness(step: int, one: JudgedRollout) -> int | None:
    version = one.rollout.policy_version
    return None if version is None else step - version
