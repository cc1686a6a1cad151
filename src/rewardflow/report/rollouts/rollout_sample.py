"""Samples rollouts with the judge's queries and answers, from rollouts/step_*.parquet or else from the journal.

Always true: the amount read is bounded, however long the run; the same files give the same sample; a text that is too
long for a page is cut and says how much is missing. No text here is trusted; the page only shows it.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module  # pyarrow has no types here: loaded late, it is `Any`
from pathlib import Path
from typing import Any

from rewardflow.drawing.markup import visible
from rewardflow.errors import InvalidInput, JournalError
from rewardflow.extras import install_command
from rewardflow.observe.events import plain
from rewardflow.observe.run_directory import JOURNAL_FILE, ROLLOUTS_FOLDER, ROLLOUTS_VERSION, ROLLOUTS_VERSION_KEY
from rewardflow.report.run_data import RunData
from rewardflow.reward.journal.reader import JournalReader, JournalRow

MAX_ROLLOUTS = 160
MAX_CHARS = 6000
_MAX_FILES = 16
_LATEST_FILES = 8  # of a run that goes on
_FILE_NAME = re.compile(r"step_(\d+)\.parquet")
_BLOCKS = 32
_ROWS_A_BLOCK = 24
_ROWS_FOR_FAILURES = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRollout:
    """A rollout as the page shows it: texts, numbers and None."""

    step: int
    group_id: str
    index: int
    question: str
    answer: str
    truth: str
    source: str
    score: float | None
    kind: str
    error: str
    components: Mapping[str, float | None]
    query: str
    explanation: str
    facts: Mapping[str, str | float | None]  # other figures: latency, cost, staleness


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSample:
    rollouts: tuple[SampledRollout, ...]
    origin: str  # a sentence for the page


def sample_rollouts(run: RunData, *, journal: Path | None = None, at_most: int = MAX_ROLLOUTS) -> RolloutSample:
    """Samples the run's files, or else `journal`, or else the journal in the run directory.

    Of a run that goes on, the newest rollouts come first, and the latest steps have a larger part.
    """
    files = rollout_files(run.directory.path / ROLLOUTS_FOLDER)
    sample = _sampled(run, files, journal, at_most)
    if run.state != "running":
        return sample
    return replace(sample, rollouts=tuple(sorted(sample.rollouts, key=lambda one: -one.step)))


def _sampled(run: RunData, files: Sequence[Path], journal: Path | None, at_most: int) -> RolloutSample:
    if files:
        return _from_files(files, at_most, num_latest=_LATEST_FILES if run.state == "running" else 0)
    journal = journal or journal_of(run)
    if journal is None:
        return RolloutSample(rollouts=(), origin=_no_rollouts(run))
    name = run.agent_settings.get("run")
    try:
        with JournalReader(journal) as reader:
            return _from_journal(reader, name if isinstance(name, str) else None, at_most)
    except JournalError as error:
        return RolloutSample(rollouts=(), origin=f"The journal could not be read: {error}")


def journal_of(run: RunData) -> Path | None:
    """Returns the journal in the run directory, never one that the run's settings name: they may be a stranger's."""
    journal = run.directory.path / JOURNAL_FILE
    return journal if journal.is_file() else None


def _no_rollouts(run: RunData) -> str:
    configured = run.agent_settings.get("journal")
    nothing = "The run keeps neither rollouts nor a journal in its directory."
    if not isinstance(configured, str):
        return nothing
    return f"{nothing} Its settings name the journal {configured:.200}: add --journal with that path to read it."


# -- rollouts/step_*.parquet --


def rollout_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    numbered = [(int(found[1]), path) for path in folder.iterdir() if (found := _FILE_NAME.fullmatch(path.name))]
    return [path for _, path in sorted(numbered)]


def _from_files(files: Sequence[Path], at_most: int, *, num_latest: int) -> RolloutSample:
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError:
        return RolloutSample(rollouts=(), origin=f"Reading rollouts needs pyarrow: {install_command('parquet')}")
    older, latest = files[: len(files) - num_latest], files[max(0, len(files) - num_latest) :]
    chosen = [*_spread(older, _MAX_FILES - len(latest)), *latest]
    share = max(1, at_most // len(chosen))
    rollouts: list[SampledRollout] = []
    damaged: list[str] = []
    for path in chosen:
        try:
            table = parquet.read_table(path)
        except (OSError, ValueError):  # ArrowInvalid is a ValueError; a page can do without one of the steps
            damaged.append(path.name)
            continue
        check_version(table.schema.metadata or {}, path)
        scores = table.column("score").to_pylist() if "score" in table.column_names else [None] * table.num_rows
        rollouts += [rollout_of_row(row) for row in table.take(_telling(scores, share)).to_pylist()]
    origin = (
        f"{len(rollouts)} rollouts out of {len(chosen)} of {len(files)} steps: failures, extremes and some by chance."
    )
    if damaged:
        origin += f" What could not be read: {', '.join(damaged)}."
    return RolloutSample(rollouts=tuple(rollouts), origin=origin)


def check_version(metadata: Mapping[bytes, bytes], path: Path) -> None:
    version = metadata.get(ROLLOUTS_VERSION_KEY, b"1").decode(errors="replace")
    if version != str(ROLLOUTS_VERSION):
        raise InvalidInput(f"rollouts must be of schema version {ROLLOUTS_VERSION}, got {version} in {path}")


def _telling(scores: Sequence[float | None], count: int) -> list[int]:
    """Chooses rollouts of one step: some that failed, the lowest, the highest, and the rest at random."""
    failed = [place for place, score in enumerate(scores) if score is None]
    ranked = sorted((score, place) for place, score in enumerate(scores) if score is not None)
    scored = [place for _, place in ranked]
    part = max(1, count // 4)
    chosen = failed[:part] + scored[:part] + scored[max(part, len(scored) - part) :]
    rest = scored[part : len(scored) - part]
    chosen += random.Random(0).sample(rest, min(len(rest), max(0, count - len(chosen))))
    return sorted(chosen[:count])


def rollout_of_row(row: Mapping[str, Any]) -> SampledRollout:
    facts = ("latency_s", "cost_usd", "attempts", "cached", "advantage", "policy_version", "staleness", "num_tokens")
    prompt = row.get("messages") or row.get("prompt")
    return SampledRollout(
        step=int(row.get("step") or 0),
        group_id=str(row.get("group_id")),
        index=int(row.get("index") or 0),
        question=_question(prompt),
        answer=_text(row.get("response")),
        truth=_text(row.get("ground_truth")),
        source=_text(row.get("data_source")),
        score=row.get("score"),
        kind=_text(row.get("kind")),
        error=_text(row.get("error")),
        components=_components(row.get("components")),
        query=_text(row.get("query")),
        explanation=_text(row.get("explanation")),
        facts={name: _fact(row[name]) for name in (*facts, "trained", "why_not") if row.get(name) is not None},
    )


# -- the journal --


def _from_journal(reader: JournalReader, run: str | None, at_most: int) -> RolloutSample:
    """Reads blocks of adjacent rows, so that they probably hold all components of a rollout."""
    last_id = reader.last_id()
    rows = {
        row.id: row for row in reader.between(max(1, last_id - _ROWS_FOR_FAILURES), last_id, failed_only=True)[-24:]
    }
    starts = _spread(range(1, max(2, last_id - _ROWS_A_BLOCK + 2)), _BLOCKS)
    for start in starts:
        rows |= {row.id: row for row in reader.between(start, start + _ROWS_A_BLOCK - 1)}
    by_rollout: dict[tuple[int, str, int], list[JournalRow]] = {}
    for _, row in sorted(rows.items()):
        if run is None or row.run == run:
            by_rollout.setdefault((row.step, row.group_id, row.index), []).append(row)
    failed = {key for key, parts in by_rollout.items() if any(part.value is None for part in parts)}
    others = _spread([key for key in by_rollout if key not in failed], at_most - min(len(failed), at_most // 4))
    keys = sorted([*sorted(failed)[: at_most // 4], *others])
    origin = f"{len(keys)} rollouts out of {last_id:,} verdicts of the journal; advantages are not kept there."
    return RolloutSample(rollouts=tuple(rollout_of_parts(by_rollout[key]) for key in keys), origin=origin)


def rollout_of_parts(parts: Sequence[JournalRow]) -> SampledRollout:
    """Makes one rollout from its rows, one for each reward. The last row of a reward counts."""
    by_reward = {part.reward: part for part in parts}
    first = next(iter(by_reward.values()))
    rollout = first.rollout
    is_one = len(by_reward) == 1
    own = {name: part.value for name, part in by_reward.items()}
    failures = [part for part in by_reward.values() if part.value is None]
    return SampledRollout(
        step=first.step,
        group_id=first.group_id,
        index=first.index,
        question=_question(rollout.get("messages") or rollout.get("prompt")) or _hidden(rollout),
        answer=_text(rollout.get("response")),
        truth=_text(rollout.get("ground_truth")),
        source=_text(rollout.get("data_source")),
        score=first.value if is_one else None,
        kind=_text(failures[0].kind) if failures else "",
        error=_text(failures[0].verdict.get("error")) if failures else "",
        components=_components(first.verdict.get("components")) if is_one else own,
        query="\n\n".join(_named(part, "query", is_one) for part in by_reward.values()).strip(),
        explanation="\n\n".join(_named(part, "explanation", is_one) for part in by_reward.values()).strip(),
        facts={
            "latency_s": max(part.latency_s for part in by_reward.values()),
            "cost_usd": sum(part.cost_usd for part in by_reward.values()),
            "attempts": sum(part.attempts for part in by_reward.values()),
            "policy_version": _fact(rollout.get("policy_version")),
        },
    )


def _named(part: JournalRow, name: str, is_one: bool) -> str:
    text = _text(part.verdict.get(name))
    return text if is_one or not text else f"{part.reward}: {text}"


def _hidden(rollout: Mapping[str, Any]) -> str:
    return "(the journal keeps digests of texts only: journal_store is hash)" if rollout.get("digests") else ""


# -- texts --


def _question(prompt: object) -> str:
    """Returns a prompt as text; of a conversation, a line for each message."""
    if isinstance(prompt, str) and prompt.lstrip().startswith("["):
        try:
            prompt = json.loads(prompt)
        except (ValueError, RecursionError):  # a text that only looks like JSON
            return _text(prompt)
    if isinstance(prompt, Sequence) and not isinstance(prompt, str) and all(isinstance(m, Mapping) for m in prompt):
        return _text("\n\n".join(f"{m.get('role', '')}: {_content(m.get('content'))}" for m in prompt))
    return _text(prompt)


def _content(content: object) -> str:
    return content if isinstance(content, str) else json.dumps(plain(content), ensure_ascii=False)


def _text(value: object) -> str:
    if value is None:
        return ""
    text = visible(_content(value))
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}\n[… {len(text) - MAX_CHARS:,} characters more]"


def _components(value: object) -> dict[str, float | None]:
    """Reads components from a mapping, or from parquet's forms of one: pairs, or JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    if isinstance(value, Iterable) and not isinstance(value, Mapping | str):
        pairs = [pair for pair in value if isinstance(pair, Sequence) and len(pair) == 2]
        value = {pair[0]: pair[1] for pair in pairs}
    if not isinstance(value, Mapping):
        return {}
    return {visible(str(name)): part if isinstance(part, int | float) else None for name, part in value.items()}


def _fact(value: object) -> str | float | None:
    if value is None or isinstance(value, int | float):
        return value if not isinstance(value, bool) else ("yes" if value else "no")
    return _text(value)


def _spread(items: Sequence[Any], count: int) -> list[Any]:
    """Returns `count` evenly spaced items, with the first and the last."""
    if len(items) <= count or count < 2:
        return list(items[: max(count, 0)])
    return [items[round(place * (len(items) - 1) / (count - 1))] for place in range(count)]
