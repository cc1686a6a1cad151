"""Sends the figures of a run to TensorBoard and Weights & Biases, besides its own files.

Always true: a sink gets every step once, in order, on its own thread; a resumed run writes no step twice; a sink that
fails is logged once and never ends a run.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rewardflow.errors import InvalidInput
from rewardflow.observe.private_file import write_private
from rewardflow.observe.run_directory import TENSORBOARD_FOLDER, WANDB_FILE, RunDirectory
from rewardflow.runtime.records.background_writer import BackgroundWriter
from rewardflow.runtime.records.saved_settings import shown_settings
from rewardflow.settings.run_settings import RunSettings

logger = logging.getLogger(__name__)

MOST_WAITING = 10_000  # steps; each is a few hundred numbers


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """The figures of one step by flat names, as `scalars` gives them.

    Figures that may come after those of later steps have their own `axis`, along which `step` counts.
    """

    step: int
    values: Mapping[str, float]
    axis: str | None = None


WriteMetrics = Callable[[StepMetrics], None]


class MetricsSink(Protocol):
    """A target for figures."""

    @property
    def name(self) -> str:
        """As people know it."""

    def opened(self) -> AbstractContextManager[WriteMetrics]:
        """Opens the sink. One thread enters, uses and leaves it; it may be slow, and may raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorBoardSink:
    """`purge_step`: hide what earlier sessions wrote from this step on; None: there were none."""

    folder: Path
    purge_step: int | None
    name: str = "TensorBoard"

    @contextlib.contextmanager
    def opened(self) -> Iterator[WriteMetrics]:
        summary_writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter

        def write(metrics: StepMetrics) -> None:
            for name, value in metrics.values.items():
                writer.add_scalar(name, value, metrics.step)
            writer.flush()  # on disk before the step is part of a checkpoint

        self.folder.mkdir(mode=0o700, exist_ok=True)  # its files have the modes of the umask
        writer = summary_writer(str(self.folder), purge_step=self.purge_step)
        with contextlib.closing(writer):
            yield write


@dataclass(frozen=True, slots=True, kw_only=True)
class WandbSink:
    """`state_path` stores the run's id at Weights & Biases and the first step that it does not have yet."""

    folder: Path
    state_path: Path
    run_name: str
    project: str
    entity: str | None
    mode: str
    config: Mapping[str, Any]
    name: str = "Weights & Biases"

    @contextlib.contextmanager
    def opened(self) -> Iterator[WriteMetrics]:
        wandb: Any = importlib.import_module("wandb")
        state = _WandbState.read(self.state_path)
        state.write(self.state_path)
        (self.folder / "wandb").mkdir(mode=0o700, exist_ok=True)  # its files have the modes of the umask
        run = wandb.init(
            project=self.project,
            entity=self.entity,
            name=self.run_name,
            id=state.run_id,
            resume="allow" if self.mode == "online" else None,
            mode=self.mode,
            dir=str(self.folder),
            config=dict(self.config),
            # What a run prints, and the code it was started from, are nobody's business there; the terminal is ours.
            settings=wandb.Settings(console="off", disable_git=True, save_code=False, silent=True),
        )
        logger.info("Weights & Biases: %s", run.url or f"offline, in {self.folder / 'wandb'}")

        def write(metrics: StepMetrics) -> None:
            nonlocal state
            if metrics.axis is not None:
                # Steps must rise there, so these go into the row of the step that is under way, with an axis of theirs.
                run.define_metric(metrics.axis)
                run.define_metric(f"{metrics.axis.partition('/')[0]}/*", step_metric=metrics.axis)
                run.log({**metrics.values, metrics.axis: metrics.step}, commit=False)
                return
            if metrics.step < state.next_step:
                return  # written before the run was resumed, which trains it again with the same numbers
            run.log(dict(metrics.values), step=metrics.step)
            state = _WandbState(run_id=state.run_id, next_step=metrics.step + 1)
            state.write(self.state_path)

        try:
            yield write
        finally:
            run.finish()


@dataclass(frozen=True, slots=True, kw_only=True)
class _WandbState:
    run_id: str
    next_step: int = 0

    @classmethod
    def read(cls, path: Path) -> _WandbState:
        try:
            state = json.loads(path.read_bytes())
            return cls(run_id=str(state["run_id"]), next_step=int(state["next_step"]))
        except FileNotFoundError:
            return cls(run_id=uuid.uuid4().hex[:12])

    def write(self, path: Path) -> None:
        write_private(path, json.dumps({"run_id": self.run_id, "next_step": self.next_step}).encode() + b"\n")


# -- which of them a run has --


def check_sinks(settings: RunSettings) -> None:
    """Raises if a sink that the settings ask for is not installed."""
    asked = {"tensorboard": settings.metrics.tensorboard is True, "wandb": settings.metrics.wandb is not None}
    for package, is_asked in asked.items():
        if is_asked and not _is_installed(package):
            raise InvalidInput(f"metrics.{package} needs {package}, which is not installed: pip install {package}")


def sinks_of(settings: RunSettings, directory: RunDirectory, *, resumes: bool, next_step: int) -> list[MetricsSink]:
    found: list[MetricsSink] = []
    wants_tensorboard = settings.metrics.tensorboard
    if _is_installed("tensorboard") if wants_tensorboard is None else wants_tensorboard:
        purge_step = next_step if resumes else None
        found.append(TensorBoardSink(folder=directory.path / TENSORBOARD_FOLDER, purge_step=purge_step))
    if settings.metrics.wandb is not None:
        found.append(
            WandbSink(
                folder=directory.path,
                state_path=directory.path / WANDB_FILE,
                run_name=directory.name,
                project=settings.metrics.wandb_project,
                entity=settings.metrics.wandb_entity,
                mode=settings.metrics.wandb,
                config=shown_settings(settings),
            )
        )
    return found


def in_background(sink: MetricsSink) -> BackgroundWriter[StepMetrics]:
    return BackgroundWriter(sink.name, sink.opened, most_waiting=MOST_WAITING)


def _is_installed(package: str) -> bool:
    """Whether the package is there; a folder of that name, as both sinks make, is not the package."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None
