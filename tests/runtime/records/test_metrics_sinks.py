"""TensorBoard and Weights & Biases: every step once, also when a run goes on, and never the end of a run.

What needs the real libraries is skipped where they are not installed (`make test-oracle` has both); the seam is tested
with modules of the same face.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_run import settings_in

from rewardflow.errors import InvalidInput
from rewardflow.runtime.local import embedded
from rewardflow.runtime.records.metrics_sinks import StepMetrics, TensorBoardSink, WandbSink, check_sinks, in_background
from rewardflow.settings.run_settings import CheckpointSettings, MetricsSettings, RunSettings

torch.set_num_threads(1)

TIMEOUT_S = 60.0
is_missing = {name: importlib.util.find_spec(name) is None for name in ("tensorboard", "wandb")}
needs_tensorboard = pytest.mark.skipif(is_missing["tensorboard"], reason="tensorboard is not installed")
needs_wandb = pytest.mark.skipif(is_missing["wandb"], reason="wandb is not installed")
foreign_warnings = pytest.mark.filterwarnings("ignore")  # what other libraries deprecate is their affair


def train(settings: RunSettings, **options: Any) -> None:
    async def run() -> None:
        async with embedded(settings, **options) as run:
            await run.train()

    asyncio.run(run())


class Cut(Exception):
    """The run ends here."""


def cut_after(step: int) -> Any:
    def on_step(report: Any) -> None:
        if report.step == step:
            raise Cut

    return on_step


def wandb_sink(folder: Path, mode: str = "offline") -> WandbSink:
    return WandbSink(
        folder=folder,
        state_path=folder / "wandb.json",
        run_name="digits",
        project="p",
        entity=None,
        mode=mode,
        config={"steps": 3},
    )


def put_steps(sink: Any, steps: range) -> None:
    writer = in_background(sink)
    for step in steps:
        writer.put(StepMetrics(step, {"score_mean": step / 2}))
    writer.close(TIMEOUT_S)
    assert writer.statistics().num_written == len(steps)


# -- TensorBoard --


def points_in(folder: Path, name: str) -> list[tuple[int, float]]:
    """As TensorBoard itself reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return [(event.step, event.value) for event in accumulator.Scalars(name)]


@needs_tensorboard
@foreign_warnings
def test_tensorboard_has_every_step_once_after_a_run_went_on_from_an_earlier_one(tmp_path: Path) -> None:
    put_steps(TensorBoardSink(folder=tmp_path, purge_step=None), range(5))
    put_steps(TensorBoardSink(folder=tmp_path, purge_step=3), range(3, 7))
    assert points_in(tmp_path, "score_mean") == [(step, step / 2) for step in range(7)]


@needs_tensorboard
@foreign_warnings
def test_only_the_owner_may_enter_the_folder_of_tensorboard(tmp_path: Path) -> None:
    put_steps(TensorBoardSink(folder=tmp_path / "tensorboard", purge_step=None), range(1))
    assert (tmp_path / "tensorboard").stat().st_mode & 0o777 == 0o700


@needs_tensorboard
@foreign_warnings
def test_a_run_with_tensorboard_installed_draws_what_its_metrics_say(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, run_dir=tmp_path / "run", checkpoint=CheckpointSettings(every=1))
    with pytest.raises(Cut):
        train(settings, on_step=cut_after(1))
    train(settings, resume=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()]
    folder = tmp_path / "run" / "tensorboard"
    for name, of in {
        "score_mean": lambda line: line["score_mean"],
        "busy_s/update": lambda line: line["busy_s"]["update"],
        "mini_batch/1/effective_share": lambda line: line["mini_batches"][1]["effective_share"],
    }.items():
        expected = [(line["step"], pytest.approx(of(line))) for line in lines]
        assert points_in(folder, name) == expected


# -- Weights & Biases --


@pytest.fixture
def fake_wandb(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module with the few names that are used, which remembers what it was told."""
    module: Any = ModuleType("wandb")
    module.runs = []

    def init(**options: Any) -> Any:
        run = SimpleNamespace(options=options, logged=[], is_finished=False, url=None)
        run.log = lambda values, step=None, commit=None: run.logged.append((step, values))
        run.axes = {}
        run.define_metric = lambda name, step_metric=None: run.axes.update({name: step_metric})
        run.finish = lambda: setattr(run, "is_finished", True)
        module.runs.append(run)
        return run

    module.init = init
    module.Settings = lambda **options: options
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_a_resumed_run_goes_on_under_its_id_and_logs_no_step_twice(tmp_path: Path, fake_wandb: Any) -> None:
    put_steps(wandb_sink(tmp_path, "online"), range(5))
    put_steps(wandb_sink(tmp_path, "online"), range(3, 7))
    first, second = fake_wandb.runs
    assert first.options["id"] == second.options["id"]
    assert (first.options["resume"], first.options["mode"], first.options["dir"]) == ("allow", "online", str(tmp_path))
    assert [step for run in fake_wandb.runs for step, _ in run.logged] == list(range(7))
    assert first.logged[3] == (3, {"score_mean": 1.5})
    assert first.is_finished
    assert second.is_finished
    assert (tmp_path / "wandb").stat().st_mode & 0o777 == 0o700


def test_figures_of_an_earlier_version_come_late_on_an_axis_of_their_own_and_push_no_step_out(
    tmp_path: Path, fake_wandb: Any
) -> None:
    writer = in_background(wandb_sink(tmp_path))
    for step in (0, 1, 2):
        writer.put(StepMetrics(step, {"score_mean": 0.5}))
        writer.put(StepMetrics(step, {"validation/score_mean": 0.25}, axis="validation/version"))
    writer.close(TIMEOUT_S)
    (run,) = fake_wandb.runs
    late = [(None, {"validation/score_mean": 0.25, "validation/version": version}) for version in (0, 1, 2)]
    steps = [(step, {"score_mean": 0.5}) for step in (0, 1, 2)]
    assert run.logged == [one for pair in zip(steps, late, strict=True) for one in pair]
    assert run.axes["validation/*"] == "validation/version"


def test_what_a_run_prints_and_its_code_are_not_sent(tmp_path: Path, fake_wandb: Any) -> None:
    put_steps(wandb_sink(tmp_path), range(1))
    sent = fake_wandb.runs[0].options["settings"]
    assert (sent["console"], sent["disable_git"], sent["save_code"]) == ("off", True, False)


@needs_wandb
@foreign_warnings
def test_offline_the_real_library_keeps_every_step_once_in_the_run_directory(tmp_path: Path) -> None:
    settings = settings_in(
        tmp_path,
        run_dir=tmp_path / "run",
        checkpoint=CheckpointSettings(every=1),
        metrics=MetricsSettings(tensorboard=False, wandb="offline"),
    )
    with pytest.raises(Cut):
        train(settings, on_step=cut_after(1))
    train(settings, resume=True)
    state = json.loads((tmp_path / "run" / "wandb.json").read_text("utf-8"))
    assert state["next_step"] == 3
    files = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2
    assert {path.stem for path in files} == {f"run-{state['run_id']}"}
    assert Counter(step for path in files for step in steps_logged_in(path)) == {0: 1, 1: 1, 2: 1}


def steps_logged_in(path: Path) -> list[int]:
    from wandb.proto import wandb_internal_pb2

    steps = []
    for data in log_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            steps.append(record.history.step.num)
    return steps


def log_records(data: bytes, block: int = 32768, header: int = 7) -> Iterator[bytes]:
    """The file is a LevelDB log: records in pieces (first 2, middle 3, last 4, or all in one 1) that fill blocks."""
    place, pieces = header, b""
    while place + header <= len(data):
        if block - place % block < header:
            place += block - place % block
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        pieces += data[place + header : place + header + length]
        place += header + length
        if kind in (1, 4):
            yield pieces
            pieces = b""


# -- what fails, and what is asked for --


def test_a_sink_that_fails_is_told_once_and_the_run_goes_on(
    tmp_path: Path, fake_wandb: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def init(**options: Any) -> Any:
        raise ConnectionError("no route to host")

    fake_wandb.init = init
    fake_wandb.__spec__ = SimpleNamespace(origin="wandb.py")
    settings = settings_in(
        tmp_path, run_dir=tmp_path / "run", metrics=MetricsSettings(tensorboard=False, wandb="online")
    )
    with caplog.at_level(logging.WARNING, "rewardflow.runtime.records.background_writer"):
        train(settings)
    assert len((tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()) == 3
    told = [
        record.message for record in caplog.records if record.name == "rewardflow.runtime.records.background_writer"
    ]
    assert len(told) == 1
    assert "Weights & Biases cannot be written" in told[0]


@pytest.mark.parametrize(
    ("package", "metrics"),
    [("tensorboard", MetricsSettings(tensorboard=True)), ("wandb", MetricsSettings(wandb="offline"))],
)
def test_what_is_asked_for_and_not_installed_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, metrics: MetricsSettings
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # as Python marks what cannot be imported, installed or not
    with pytest.raises(InvalidInput, match=rf"metrics\.{package} needs {package}, which is not installed"):
        check_sinks(settings_in(tmp_path, run_dir=tmp_path / "run", metrics=metrics))


def test_a_folder_of_the_same_name_is_not_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_missing["wandb"]:
        pytest.skip("wandb is installed")
    (tmp_path / "wandb").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidInput, match=r"metrics\.wandb needs wandb"):
        check_sinks(settings_in(tmp_path, run_dir=tmp_path / "run", metrics=MetricsSettings(wandb="offline")))


@pytest.mark.parametrize("metrics", [{"tensorboard": True}, {"wandb": "online"}])
def test_without_a_run_directory_there_is_nowhere_to_write(tmp_path: Path, metrics: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="needs a run_dir to write to"):
        settings_in(tmp_path, metrics=MetricsSettings(**metrics))
