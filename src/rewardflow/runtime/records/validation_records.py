"""Writes the files of a run about its validations.

    validation.jsonl            one line for each version that was measured: figures overall and by data source
    validation_rollouts.jsonl   one line for each rollout that was judged for it, with its verdict

Always true: a measured version has one line in the first file, however often the run was killed and resumed; where the
journal keeps no texts (`limits.store: hash`), these files have none either.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from rewardflow.checkpoint.manifest import Checkpoint
from rewardflow.flow.records import is_truncated, num_sampled_tokens
from rewardflow.flow.validation.validation_report import Validated
from rewardflow.observe.events import SCHEMA_VERSION
from rewardflow.observe.line_file import LineFile, encode_line, read_lines
from rewardflow.observe.private_file import replacing
from rewardflow.observe.run_directory import VALIDATION_FILE, VALIDATION_ROLLOUTS_FILE
from rewardflow.settings.run_settings import RunSettings
from rewardflow.types import Reward, Rollout

_TEXTS = ("prompt", "messages", "response", "ground_truth", "explanation")


class ValidationRecords:
    """The files, open for writing. Versions that an earlier process of the run recorded are skipped."""

    def __init__(self, folder: Path, *, keeps_texts: bool) -> None:
        self._told = measured_versions(folder)
        self._keeps_texts = keeps_texts
        self._figures: LineFile[Mapping[str, Any]] = LineFile(folder / VALIDATION_FILE, dict)
        self._rollouts: LineFile[Mapping[str, Any]] = LineFile(folder / VALIDATION_ROLLOUTS_FILE, dict)

    def validated(self, validated: Validated) -> bool:
        """Records a version; returns whether it is new."""
        if validated.report.version in self._told:
            return False
        self._told.add(validated.report.version)
        for line in rollout_lines(validated, keeps_texts=self._keeps_texts):
            self._rollouts.append(line)
        self._figures.append(validated.report.to_json())
        return True

    def flush(self) -> None:
        """Writes the rollouts first: a version that has figures has rollouts."""
        self._rollouts.flush()
        self._figures.flush()

    def close(self) -> None:
        self._rollouts.close()
        self._figures.close()


def measured_versions(folder: Path) -> set[int]:
    """Returns the versions that the run in the folder has recorded."""
    return {line["version"] for _, line in read_lines(folder / VALIDATION_FILE)}


def is_measuring(settings: RunSettings, checkpoint: Checkpoint) -> bool:
    """Whether a run that ended at this checkpoint has a validation left to finish, and can."""
    if settings.validation is None or settings.run_dir is None:
        return False
    told = measured_versions(Path(settings.run_dir))
    missing = [one for one in settings.validation.occasions.versions(settings.steps) if one not in told]
    return checkpoint.step in missing or (bool(missing) and checkpoint.has_validations)


def cut_validations(folder: Path, *, versions: Collection[int]) -> None:
    """Keeps the lines of these versions; others will be measured and written again."""
    _cut(folder / VALIDATION_FILE, lambda line: line["version"] in versions)
    told = measured_versions(folder)
    _cut(folder / VALIDATION_ROLLOUTS_FILE, lambda line: line["version"] in told)


def _cut(path: Path, keeps: Callable[[Mapping[str, Any]], bool]) -> None:
    if all(keeps(line) for _, line in read_lines(path)):
        return
    with replacing(path) as file:
        file.writelines(encode_line(line) for _, line in read_lines(path) if keeps(line))


def rollout_lines(validated: Validated, *, keeps_texts: bool) -> Iterator[dict[str, Any]]:
    for group in validated.groups:
        for rollout, reward in zip(group.rollouts, group.rewards, strict=True):
            line = _line(validated.report.version, rollout, reward)
            yield line if keeps_texts else {name: value for name, value in line.items() if name not in _TEXTS}


def _line(version: int, rollout: Rollout, reward: Reward) -> dict[str, Any]:
    return {
        "v": SCHEMA_VERSION,
        "version": version,
        "group_id": rollout.group_id,
        "index": rollout.index,
        "data_source": rollout.data_source,
        "prompt": rollout.prompt,
        "messages": list(rollout.messages),
        "response": rollout.response,
        "ground_truth": rollout.ground_truth,
        "response_tokens": num_sampled_tokens(rollout),
        "truncated": is_truncated(rollout),
        "score": reward.value,
        "kind": reward.kind,
        "error": reward.error,
        "imputed": reward.imputed,
        "components": dict(reward.components),
        "explanation": reward.explanation,
        "cost_usd": reward.cost_usd,
    }
