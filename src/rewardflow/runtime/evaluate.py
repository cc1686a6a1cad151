"""Measures one model on the validation data of a run file, without training.

Always true: the model is that of the settings, of a checkpoint, or of a folder that transformers loads; the training
run is not touched: verdicts and figures go to the evaluation's own directory, whose journal answers when the same
evaluation runs again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from rewardflow.checkpoint.manifest import MANIFEST_FILE, Checkpoint
from rewardflow.errors import InvalidInput
from rewardflow.flow.device import Device
from rewardflow.flow.validation.measurement import Measurement
from rewardflow.flow.validation.validation_report import Validated
from rewardflow.observe.run_directory import CHECKPOINTS_FOLDER, EVALUATIONS_FOLDER, METRICS_FILE
from rewardflow.runtime.open_run import open_agent, probe_own_agent, runtime_of
from rewardflow.runtime.prepare import check_installed, prepare_evaluation, store_of
from rewardflow.runtime.records.validation_records import ValidationRecords, cut_validations
from rewardflow.runtime.run_agent import RunAgent, keeps_texts, shared_cluster
from rewardflow.runtime.validation_setup import make_plan
from rewardflow.settings.run_settings import PolicySettings, RunSettings

_HF_CONFIG = "config.json"
_WHERE_RUNS_WRITE = ("journal", "run_dir")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredModel:
    """The model to measure. `version` is the number of steps it was trained, if known; `name` fits a folder's name."""

    name: str
    policy: PolicySettings
    version: int = 0
    checkpoint: Checkpoint | None = None
    place: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationStart:
    """What an evaluation starts from, after its checks. `out` is its directory; None: it writes nothing."""

    settings: RunSettings  # of the run file
    model: MeasuredModel
    out: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """An evaluation that is ready: call `await evaluation.measure()` once."""

    agent: RunAgent
    measurement: Measurement
    device: Device
    records: ValidationRecords | None

    async def measure(self) -> Validated:
        self.device.announce("validate")
        validated = await self.measurement.run(lambda one: one.generate(self.device))
        if self.records is not None:
            self.records.validated(validated)
        return validated


def check_evaluation(settings: RunSettings, wanted: str | None, *, out: Path | None = None) -> EvaluationStart:
    """Checks the settings and finds the model, before anything is loaded. `wanted` is as in `find_model`.

    Without `out` the evaluation is written beside the run, if that has a `run_dir`.
    """
    _check_validation(settings)
    check_installed()
    model = find_model(settings, wanted)
    out = out or _default_directory(settings, model)
    _refuse_a_training_run(out)
    return EvaluationStart(settings=settings, model=model, out=out)


def find_model(settings: RunSettings, wanted: str | None) -> MeasuredModel:
    """Finds the model to measure; None is the model that the settings name, as it is before training.

    `wanted` is `latest` or `best` of `run_dir`, a checkpoint, a run's directory, or a folder that transformers loads.
    """
    if wanted is None:
        return MeasuredModel(name="model", policy=settings.policy)
    if wanted in ("latest", "best"):
        store = store_of(settings)
        found = store.best() if wanted == "best" else store.latest()
        if found is None:
            kind = "a checkpoint with a score (checkpoint.keep_best_by)" if wanted == "best" else "an intact checkpoint"
            raise InvalidInput(f"--checkpoint {wanted} needs {kind} in run_dir, got {settings.run_dir} without one")
        return _of_checkpoint(found, settings)
    place = Path(wanted).expanduser()
    if (place / MANIFEST_FILE).is_file() or (place / CHECKPOINTS_FOLDER).is_dir():
        from rewardflow.checkpoint.export_source import find_checkpoint

        return _of_checkpoint(find_checkpoint(place), settings)
    if (place / _HF_CONFIG).is_file():
        policy = replace(settings.policy, model=str(place.absolute()), gguf_file=None, tokenizer=None)
        return MeasuredModel(name=place.resolve().name, policy=policy, place=place)
    raise InvalidInput(
        "--checkpoint must be latest, best, a checkpoint, a run's directory, or a folder that transformers loads "
        f"(with a {_HF_CONFIG}), got {wanted}"
    )


def _of_checkpoint(checkpoint: Checkpoint, settings: RunSettings) -> MeasuredModel:
    from rewardflow.checkpoint.export_source import policy_settings_of

    return MeasuredModel(
        name=checkpoint.path.resolve().name,
        policy=policy_settings_of(checkpoint, trust_remote_code=settings.policy.trust_remote_code),
        version=checkpoint.step,
        checkpoint=checkpoint,
        place=checkpoint.path,
    )


def _default_directory(settings: RunSettings, model: MeasuredModel) -> Path | None:
    """Returns the default directory of an evaluation: in `run_dir`, by the model's name."""
    return None if settings.run_dir is None else Path(settings.run_dir) / EVALUATIONS_FOLDER / model.name


def settings_of(settings: RunSettings, model: MeasuredModel, out: Path | None) -> RunSettings:
    """Returns the settings of a run that is this evaluation, so that it builds agent and engine as a run does."""
    checkpoint = replace(settings.checkpoint, every=None, keep_best_by=None, max_hours=None)
    limits, shared = settings.limits, settings.shared_agent
    if shared.name is None:
        limits = {name: value for name, value in limits.items() if name not in _WHERE_RUNS_WRITE}
    else:  # its journal is not the run's, but its verdicts are told apart by the run
        shared = replace(shared, run=f"{shared.run or settings.run_dir}, evaluation of {model.name}")
    return replace(
        settings, policy=model.policy, limits=limits, run_dir=out, checkpoint=checkpoint, shared_agent=shared
    )


@contextlib.asynccontextmanager
async def evaluation(
    start: EvaluationStart, *, probes: bool = True, tell: Callable[[str], None] | None = None
) -> AsyncIterator[Evaluation]:
    """Opens everything that an evaluation needs. Mistakes that are cheap to find are found first, as in a run."""
    model, out = start.model, start.out
    settings = settings_of(start.settings, model, out)
    prepared = prepare_evaluation(settings)
    agent = prepared.agent
    if probes:
        await probe_own_agent(prepared)
    async with contextlib.AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(runtime_of(settings, tell, trains=False))
        prompts = await runtime.rehearse_evaluation(prepared.prompt_set)
        stack.enter_context(shared_cluster(settings))
        await open_agent(prepared, stack, probes=probes)
        plan = make_plan(settings, prompts)
        assert plan is not None
        generator = await runtime.load_evaluation(model.checkpoint, model.version)
        texts = keeps_texts(agent, settings, folder=prepared.folder)
        yield Evaluation(
            agent=agent,
            measurement=Measurement(model.version, plan, generator, agent, due_step=model.version),
            device=Device("generator"),
            records=None if out is None else await _open_records(out, stack, keeps_texts=texts),
        )


def _check_validation(settings: RunSettings) -> None:
    if settings.validation is None:
        raise InvalidInput(
            "an evaluation needs prompts: a validation with data in the run file, or validation.data.path=test.jsonl "
            "on the command line, got none"
        )


def _refuse_a_training_run(out: Path | None) -> None:
    """Raises if `out` holds a training run: an evaluation replaces earlier figures, so it would replace the run's."""
    if out is not None and (out / METRICS_FILE).exists():
        raise InvalidInput(f"--out must be a directory of the evaluation's own, got {out}, which holds a training run")


async def _open_records(out: Path, stack: contextlib.AsyncExitStack, *, keeps_texts: bool) -> ValidationRecords:
    """Removes the records of an earlier evaluation in this directory, and opens new ones."""
    await asyncio.to_thread(cut_validations, out, versions=())
    records = ValidationRecords(out, keeps_texts=keeps_texts)
    stack.callback(records.close)
    return records
