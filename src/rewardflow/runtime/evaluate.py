"""Measures one model on the validation data of a run file: the agent with its journal, an engine, and no trainer.

Always true: the model is that of the settings, of a checkpoint, or of a folder that transformers loads, with nothing
trained; the training run is not touched: verdicts and figures go to a directory of the evaluation's own, whose journal
answers when the same is asked again.
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
from rewardflow.flow.validation import Measurement
from rewardflow.flow.validation_report import Validated
from rewardflow.observe.run_directory import CHECKPOINTS_FOLDER, EVALUATIONS_FOLDER, METRICS_FILE
from rewardflow.runtime.measuring import MeasuredModel, measuring_home
from rewardflow.runtime.open_run import check_installed, folder_of
from rewardflow.runtime.records.validation_records import ValidationRecords, cut_validations
from rewardflow.runtime.resuming import store_of
from rewardflow.runtime.reward_probe import probe, probe_open
from rewardflow.runtime.run_agent import RunAgent, agent_of_run, keeps_texts, shared_cluster
from rewardflow.runtime.validation_setup import check_reward_fits, make_plan, open_validation_set
from rewardflow.settings.run_settings import RunSettings, ValidationSettings

_HF_CONFIG = "config.json"
_WHERE_RUNS_WRITE = ("journal", "run_dir")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Ready to measure: `await evaluation.measure()`, once."""

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


def find_model(settings: RunSettings, wanted: str | None) -> MeasuredModel:
    """`wanted`: `latest` or `best` of `run_dir`; a checkpoint, a run's directory, or a folder that transformers loads.

    None: the model that the settings name, as it is before training.
    """
    if wanted is None:
        return MeasuredModel(name="model", policy=settings.policy)
    if wanted in ("latest", "best"):
        store = store_of(settings)
        found = store.best() if wanted == "best" else store.latest()
        if found is None:
            kind = "a checkpoint with a score (checkpoint.keep_best_by)" if wanted == "best" else "an intact checkpoint"
            raise InvalidInput(f"--checkpoint {wanted} needs {kind} in run_dir, got {settings.run_dir} without one")
        return _of_checkpoint(found)
    place = Path(wanted).expanduser()
    if (place / MANIFEST_FILE).is_file() or (place / CHECKPOINTS_FOLDER).is_dir():
        from rewardflow.checkpoint.exported_model import find_checkpoint

        return _of_checkpoint(find_checkpoint(place))
    if (place / _HF_CONFIG).is_file():
        policy = replace(settings.policy, model=str(place.absolute()), gguf_file=None, tokenizer=None)
        return MeasuredModel(name=place.resolve().name, policy=policy, place=place)
    raise InvalidInput(
        "--checkpoint must be latest, best, a checkpoint, a run's directory, or a folder that transformers loads "
        f"(with a {_HF_CONFIG}), got {wanted}"
    )


def _of_checkpoint(checkpoint: Checkpoint) -> MeasuredModel:
    from rewardflow.checkpoint.exported_model import policy_settings_of

    return MeasuredModel(
        name=checkpoint.path.resolve().name,
        policy=policy_settings_of(checkpoint),
        version=checkpoint.step,
        checkpoint=checkpoint,
        place=checkpoint.path,
    )


def place_of(settings: RunSettings, model: MeasuredModel) -> Path | None:
    """Where an evaluation is written unless told otherwise: beside the run, by the model's name."""
    return None if settings.run_dir is None else Path(settings.run_dir) / EVALUATIONS_FOLDER / model.name


def settings_of(settings: RunSettings, model: MeasuredModel, out: Path | None) -> RunSettings:
    """As if the run were this evaluation, so that agent, engine and device are made as a run makes them."""
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
    settings: RunSettings,
    model: MeasuredModel,
    *,
    out: Path | None = None,
    probes: bool = True,
    tell: Callable[[str], None] | None = None,
) -> AsyncIterator[Evaluation]:
    """Open all that is needed. What is cheap to find wrong is found first, as in a run."""
    check_installed()
    _refuse_a_training_run(out)
    validation = check_validation(settings)
    settings = settings_of(settings, model, out)
    folder = folder_of(settings)
    agent = agent_of_run(settings, folder=folder)
    prompt_set = open_validation_set(settings)
    assert prompt_set is not None
    is_shared = settings.shared_agent.name is not None
    if probes and not is_shared:
        await probe(settings, prompt_set[0], folder=folder)
    async with contextlib.AsyncExitStack() as stack:
        home = await stack.enter_async_context(measuring_home(settings, tell))
        prompts = await home.rehearse(prompt_set)
        stack.enter_context(shared_cluster(settings))
        await stack.enter_async_context(agent)
        if probes and is_shared:
            await probe_open(agent, prompt_set[0])
        check_reward_fits(validation, agent)
        plan = make_plan(settings, prompts)
        assert plan is not None
        generator = await home.load(model)
        texts = keeps_texts(agent, settings, folder=folder)
        yield Evaluation(
            agent=agent,
            measurement=Measurement(model.version, plan, generator, agent, due_step=model.version),
            device=Device("generator"),
            records=None if out is None else await _open_records(out, stack, keeps_texts=texts),
        )


def check_validation(settings: RunSettings) -> ValidationSettings:
    if settings.validation is None:
        raise InvalidInput(
            "an evaluation needs prompts: a validation with data in the run file, or validation.data.path=test.jsonl "
            "on the command line, got none"
        )
    return settings.validation


def _refuse_a_training_run(out: Path | None) -> None:
    """An evaluation replaces what an earlier one told, so it would replace a run's own validations."""
    if out is not None and (out / METRICS_FILE).exists():
        raise InvalidInput(f"--out must be a directory of the evaluation's own, got {out}, which holds a training run")


async def _open_records(out: Path, stack: contextlib.AsyncExitStack, *, keeps_texts: bool) -> ValidationRecords:
    """What an earlier evaluation of this place told makes room."""
    await asyncio.to_thread(cut_validations, out, versions=())
    records = ValidationRecords(out, keeps_texts=keeps_texts)
    stack.callback(records.close)
    return records
