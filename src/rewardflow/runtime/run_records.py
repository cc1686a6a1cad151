"""The files that a run writes about itself: its settings, a line for each step, what its devices did.

Always true: every step that was trained has one line in metrics.jsonl, however often the run was killed and went on;
cutting the file leaves it as it was or as it should be.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardflow.checkpoint.manifest import Checkpoint
from rewardflow.config.tree import RunSettings
from rewardflow.events import EventSink
from rewardflow.flow.reports import StepReport
from rewardflow.line_file import LineFile, encode_line, read_lines
from rewardflow.run_directory import SETTINGS_FILE, RunDirectory
from rewardflow.runtime.settings_file import write_settings


@dataclass(frozen=True, slots=True)
class RunRecords:
    """Open for writing."""

    metrics: LineFile[Mapping[str, Any]]
    devices: EventSink

    def stepped(self, report: StepReport) -> None:
        self.metrics.append(report.to_json())


def open_records(
    settings: RunSettings, stack: contextlib.AsyncExitStack, *, resumes: bool, checkpoint: Checkpoint | None
) -> RunRecords | None:
    """In `run_dir`, if there is one: a new directory, or that of the run that goes on from the checkpoint."""
    if settings.run_dir is None:
        return None
    directory = RunDirectory.at(settings.run_dir) if resumes else RunDirectory.create(settings.run_dir)
    write_settings(settings, directory.path / SETTINGS_FILE)
    cut_metrics(directory.metrics_path, next_step=0 if checkpoint is None else checkpoint.step)
    metrics = directory.open_metrics()
    stack.callback(metrics.close)
    return RunRecords(metrics, stack.enter_context(directory.open_device_events()))


def cut_metrics(path: Path, *, next_step: int) -> None:
    """Leave the lines of the steps before this one, the last of each; later steps will be trained and told again."""
    by_step: dict[int, dict[str, Any]] = {}
    num_lines = 0
    for _, line in read_lines(path):
        num_lines += 1
        if line["step"] < next_step:
            by_step[line["step"]] = line
    if num_lines == len(by_step):
        return
    draft = path.with_name(f".{path.name}.tmp")
    draft.touch(mode=0o600)
    with draft.open("wb") as file:
        file.writelines(encode_line(line) for line in by_step.values())
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
