"""Writes the records of a run: its settings, a line for each step, the use of its devices, its rollouts.

Always true: every trained step and every measured version has one line in metrics.jsonl, however often the run was
killed and resumed; cutting the file leaves it as it was or as it should be. The records of a step are on disk before a
checkpoint says that the step is done. Nothing else writes to the run directory meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardflow.checkpoint.manifest import Checkpoint
from rewardflow.extras import install_command
from rewardflow.flow.reports import StepReport
from rewardflow.flow.validation.validation_plan import VALIDATION_SOURCE
from rewardflow.flow.validation.validation_report import Validated
from rewardflow.observe.events import EventSink
from rewardflow.observe.line_file import LineFile, encode_line, read_lines
from rewardflow.observe.private_file import replacing
from rewardflow.observe.run_directory import ROLLOUTS_FOLDER, SETTINGS_FILE, RunDirectory
from rewardflow.runtime.records import rollout_parquet as rollout_files
from rewardflow.runtime.records.background_writer import BackgroundWriter
from rewardflow.runtime.records.flat_metrics import scalars
from rewardflow.runtime.records.metrics_sinks import StepMetrics, in_background, sinks_of
from rewardflow.runtime.records.rollout_parquet import RolloutFiles
from rewardflow.runtime.records.saved_settings import changed_settings, write_settings
from rewardflow.runtime.records.validation_records import ValidationRecords, cut_validations, measured_versions
from rewardflow.runtime.run_lock import sole_use
from rewardflow.settings.run_settings import RunSettings

logger = logging.getLogger(__name__)

_FLUSH_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 60.0
_VERSION_AXIS = f"{VALIDATION_SOURCE}/version"


@dataclass(frozen=True, slots=True)
class RunRecords:
    """The records of a run, open for writing."""

    metrics: LineFile[Mapping[str, Any]]
    devices: EventSink
    rollouts: RolloutFiles | None = None
    sinks: Sequence[BackgroundWriter[StepMetrics]] = ()
    validation: ValidationRecords | None = None

    def stepped(self, report: StepReport) -> None:
        line = report.to_json()
        self.metrics.append(line)
        self.tell(report.step, scalars(line))

    def tell(self, step: int, values: Mapping[str, float], *, axis: str | None = None) -> None:
        """Sends the figures of a step to all sinks."""
        for sink in self.sinks:
            sink.put(StepMetrics(step, values, axis))

    def validated(self, validated: Validated) -> None:
        """Records a measured version once, when its last verdict has come."""
        if self.validation is not None and self.validation.validated(validated):
            self.metrics.append(validated.report.to_metrics_json())
            version, values = validated.report.version, scalars(validated.report.metrics)
            self.tell(version, values, axis=_VERSION_AXIS)

    def flush(self) -> None:
        """Waits for the disk, and for a limited time for sinks, which may never answer."""
        if self.validation is not None:
            self.validation.flush()
        self.metrics.flush()
        for writer in self._writers():
            writer.flush(_FLUSH_TIMEOUT_S)

    def close(self) -> None:
        """As `flush`, then closes everything."""
        for writer in self._writers():
            writer.close(_CLOSE_TIMEOUT_S)
        if self.validation is not None:
            self.validation.close()
        self.metrics.close()

    def _writers(self) -> Iterator[BackgroundWriter[StepMetrics] | RolloutFiles]:
        yield from self.sinks
        if self.rollouts is not None:
            yield self.rollouts


def open_records(
    settings: RunSettings,
    stack: contextlib.AsyncExitStack,
    *,
    resumes: bool,
    checkpoint: Checkpoint | None,
    keeps_texts: bool = True,
) -> RunRecords | None:
    """Opens the records in `run_dir`, if there is one: a new directory, or that of the run that resumes."""
    if settings.run_dir is None:
        return None
    directory = RunDirectory.at(settings.run_dir) if resumes else RunDirectory.create(settings.run_dir)
    stack.enter_context(sole_use(directory.path))
    if changed := changed_settings(settings, directory.path / SETTINGS_FILE):
        logger.warning("the run goes on with other settings: %s", "; ".join(changed))
    write_settings(settings, directory.path / SETTINGS_FILE)
    next_step = 0 if checkpoint is None else checkpoint.step
    told = told_for_good(settings, directory, next_step)
    cut_metrics(directory.metrics_path, next_step=next_step, versions=told)
    cut_validations(directory.path, versions=told)
    devices = stack.enter_context(directory.open_device_events())
    sinks = sinks_of(settings, directory, resumes=resumes, next_step=next_step)
    records = RunRecords(
        directory.open_metrics(),
        devices,
        _open_rollouts(settings, directory, next_step, keeps_texts=keeps_texts),
        [in_background(sink) for sink in sinks],
        None if settings.validation is None else ValidationRecords(directory.path, keeps_texts=keeps_texts),
    )
    stack.push_async_callback(asyncio.to_thread, records.close)  # Weights & Biases may take its time
    if next_step in told:  # which TensorBoard has just forgotten, with the step of that number
        figures = {name: value for name, value in told[next_step].items() if name.startswith(f"{VALIDATION_SOURCE}/")}
        records.tell(next_step, scalars(figures), axis=_VERSION_AXIS)
    return records


def _open_rollouts(
    settings: RunSettings, directory: RunDirectory, next_step: int, *, keeps_texts: bool
) -> RolloutFiles | None:
    if settings.rollouts.every is None:
        return None
    if not rollout_files.is_installed():
        logger.warning("rollouts are not written, because pyarrow is not installed: %s", install_command("parquet"))
        return None
    folder = directory.path / ROLLOUTS_FOLDER
    return RolloutFiles(folder, settings.rollouts, next_step=next_step, keeps_texts=keeps_texts)


def told_for_good(settings: RunSettings, directory: RunDirectory, next_step: int) -> dict[int, dict[str, Any]]:
    """Returns versions that were measured and will not be again, with their lines of metrics.jsonl.

    The version at which a run resumes is measured again where the settings say so: not if it was the last of a run that
    is made longer. A kill may have come between two files: a version that one of them lacks was open when the run was
    saved.
    """
    lines = {
        line["step"]: line for _, line in read_lines(directory.metrics_path) if line["source"] == VALIDATION_SOURCE
    }
    validation = settings.validation
    is_due = validation is not None and validation.occasions.has(next_step, settings.steps)
    last = next_step - 1 if is_due else next_step
    both = lines.keys() & measured_versions(directory.path)
    return {version: lines[version] for version in sorted(both) if version <= last}


def cut_metrics(path: Path, *, next_step: int, versions: Collection[int]) -> None:
    """Keeps the last line of each step before this one; later steps will be trained and written again.

    Keeps the lines of these measured versions.
    """
    by_step: dict[tuple[str, int], dict[str, Any]] = {}
    num_lines = 0
    for _, line in read_lines(path):
        num_lines += 1
        if line["step"] in versions if line["source"] == VALIDATION_SOURCE else line["step"] < next_step:
            by_step[line["source"], line["step"]] = line
    if num_lines == len(by_step):
        return
    with replacing(path) as file:
        file.writelines(encode_line(line) for line in by_step.values())
