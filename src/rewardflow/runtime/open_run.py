"""Opens a run: what is the same wherever it computes, in this process or on a cluster.

Always true: what is cheap to find wrong is found first: the settings and the data, then the reward service, then what
can be said of the model without its weights; only then is anything written and the model loaded. Everything that was
opened is closed in reverse order, however the run ends. A run that goes on from a checkpoint is made like a new one,
and then everything is put back.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypedDict, TypeVar

from rewardflow.checkpoint.manifest import Checkpoint
from rewardflow.data.cursor import PromptCursor
from rewardflow.data.open_prompts import open_prompts
from rewardflow.data.prompt_set import PromptSet
from rewardflow.errors import InvalidInput
from rewardflow.flow.flow_parts import FlowParts
from rewardflow.flow.protocols import Generator, Trainer, ValueEstimator
from rewardflow.flow.records import Boundary, Prompt
from rewardflow.flow.reports import StepReport
from rewardflow.flow.run import Flow
from rewardflow.flow.validation import OnValidation
from rewardflow.flow.validation_plan import ValidationPlan
from rewardflow.generate.samplings import training_sampling
from rewardflow.observe.run_directory import RUN_FILE, RunDirectory, check_free_for_new_run
from rewardflow.runtime.checkpointing import Checkpointer, TimeIsUp, saving_on_signal
from rewardflow.runtime.records.metrics_sinks import check_sinks
from rewardflow.runtime.records.run_records import RunRecords, open_records
from rewardflow.runtime.records.step_checks import StepChecks
from rewardflow.runtime.resuming import find_checkpoint, store_of
from rewardflow.runtime.reward_probe import probe, probe_open
from rewardflow.runtime.run_agent import RunAgent, agent_of_run, keeps_texts, shared_cluster
from rewardflow.runtime.run_lock import refuse_if_in_use
from rewardflow.runtime.run_state import RunState, WeightKeeper
from rewardflow.runtime.time_budget import TimeBudget
from rewardflow.runtime.validation_setup import check_reward_fits, make_plan, open_validation_set
from rewardflow.settings.run_settings import RunSettings

T = TypeVar("T")

OnStep = Callable[[StepReport], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machinery:
    """What computes in a run."""

    generator: Generator
    trainer: Trainer
    critic: ValueEstimator | None
    weights: WeightKeeper
    fits: Callable[[Prompt], bool]  # whether a prompt can be generated from
    peak_memory_bytes: Callable[[], int | None]
    num_replicas: int = 1  # that share the samples of a micro-batch


class Home(AbstractAsyncContextManager["Home"], Protocol):
    """Where a run computes. Entered before anything heavy happens, left last."""

    async def rehearse(self, prompt_set: PromptSet, validation_set: PromptSet | None) -> tuple[Prompt, ...]:
        """Find the mistakes that can be found before anything is loaded; the prompts to measure with."""

    async def load(self) -> Machinery: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """A run that is ready to start, or to go on: `await run.train()`."""

    settings: RunSettings
    agent: RunAgent
    parts: FlowParts
    flow: Flow
    prompts: PromptCursor
    start: Boundary
    checkpointer: Checkpointer | None  # with a run directory

    async def train(self) -> int:
        """How many of the run's steps are trained then: all, unless `checkpoint.max_hours` came first."""
        try:
            await self.flow.run(steps=self.settings.steps, start=self.start)
        except TimeIsUp as end:
            return end.next_step
        return max(self.settings.steps, self.start.next_step)


class OpenOptions(TypedDict, total=False):
    """Of `opened`, which explains them."""

    folder: Path | None
    on_step: OnStep | None
    on_validation: OnValidation | None
    agent: RunAgent | None
    probes: bool
    resume: Checkpoint | bool


@contextlib.asynccontextmanager
async def opened(
    settings: RunSettings,
    home: Home,
    *,
    folder: Path | None = None,
    on_step: OnStep | None = None,
    on_validation: OnValidation | None = None,
    agent: RunAgent | None = None,
    probes: bool = True,
    resume: Checkpoint | bool = False,
) -> AsyncIterator[OpenRun]:
    """Open everything that a run needs. `agent` replaces the one that the settings describe.

    `probes`: the reward that the settings describe is asked about one sample first, as `runtime.probe` says.
    `resume`: go on with the run in `run_dir`, from its latest checkpoint, which `find_checkpoint` may have found
    already; a run without one starts again, with its journal.
    """
    budget = TimeBudget(settings.checkpoint.max_hours, started_s=asyncio.get_running_loop().time())
    resumes = resume is not False
    _check_start(settings, resumes=resumes)
    checkpoint = await asyncio.to_thread(find_checkpoint, settings) if resume is True else resume or None
    folder = folder or folder_of(settings)
    probes = probes and agent is None
    agent = agent or agent_of_run(settings, folder=folder)
    prompt_set = open_prompts(settings.data, seed=settings.seed)
    validation_set = open_validation_set(settings)
    is_shared = settings.shared_agent.name is not None
    if probes and not is_shared:
        await probe(settings, prompt_set[0], folder=folder)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(home)
        measured = await home.rehearse(prompt_set, validation_set)
        stack.enter_context(shared_cluster(settings))
        texts = keeps_texts(agent, settings, folder=folder)
        records = open_records(settings, stack, resumes=resumes, checkpoint=checkpoint, keeps_texts=texts)
        await stack.enter_async_context(agent)
        if probes and is_shared:
            await probe_open(agent, prompt_set[0])
        check_reward_fits(settings.validation, agent)
        machinery = await home.load()
        prompts = PromptCursor(prompt_set, seed=settings.seed, shuffle=settings.data.shuffle, keep=machinery.fits)
        parts = _make_parts(settings, prompts, agent, machinery, make_plan(settings, measured))
        state = _state_of(settings, machinery, parts, prompts, (prompt_set, validation_set))
        start = Boundary(next_step=0) if checkpoint is None else await state.put_back(checkpoint)
        saver = None if records is None else _open_checkpointer(settings, state, records, budget, stack, start)
        checks = StepChecks(settings, parts.advantages, machinery.peak_memory_bytes)
        yield OpenRun(
            settings=settings,
            agent=agent,
            parts=parts,
            flow=_make_flow(parts, checks, records, saver, on_step, on_validation),
            prompts=prompts,
            start=start,
            checkpointer=saver,
        )


def _check_start(settings: RunSettings, *, resumes: bool) -> None:
    check_installed()
    check_sinks(settings)
    check_run_dir(settings, resumes=resumes)


def check_installed() -> None:
    """Whether what only training needs is there; nothing of it is imported."""
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        raise InvalidInput(f"training needs {' and '.join(missing)}: pip install 'rewardflow[train]'")


def check_run_dir(settings: RunSettings, *, resumes: bool = False) -> None:
    if resumes:
        store_of(settings)
    if settings.run_dir is None:
        return
    holds_run = (Path(settings.run_dir) / RUN_FILE).exists()
    if holds_run and not resumes:
        raise InvalidInput(
            f"run_dir must be a new directory, got {settings.run_dir}, which holds a run already (--resume goes on "
            "with it)"
        )
    if holds_run:
        RunDirectory.open(settings.run_dir)  # for its mistakes
        refuse_if_in_use(Path(settings.run_dir))
    else:
        check_free_for_new_run(Path(settings.run_dir))


def folder_of(settings: RunSettings) -> Path:
    """Where relative paths of the reward's contents start."""
    return Path.cwd() if settings.reward_folder is None else Path(settings.reward_folder)


def _make_parts(
    settings: RunSettings,
    prompts: PromptCursor,
    agent: RunAgent,
    machinery: Machinery,
    validation: ValidationPlan | None,
) -> FlowParts:
    from rewardflow.algo.advantages import make_advantages

    return FlowParts(
        schedule=settings.schedule,
        prompts=prompts,
        generator=machinery.generator,
        agent=agent,
        trainer=machinery.trainer,
        advantages=make_advantages(settings.algorithm),
        group_size=settings.generation.group_size,
        sampling=training_sampling(settings),
        micro_batch_tokens=settings.trainer.micro_batch_tokens * machinery.num_replicas,
        takes_reference=settings.algorithm.needs_reference,
        takes_behaviour=settings.algorithm.needs_behaviour and settings.algorithm.behaviour == "trainer",
        takes_old=settings.algorithm.takes_old,
        critic=machinery.critic,
        has_baseline=settings.algorithm.kind.greedy,
        validation=validation,
    )


def _state_of(
    settings: RunSettings,
    machinery: Machinery,
    parts: FlowParts,
    prompts: PromptCursor,
    prompt_sets: tuple[PromptSet, PromptSet | None],
) -> RunState:
    """The sets are those of training and of validation."""
    return RunState(
        weights=machinery.weights,
        prompts=prompts,
        prompt_set=prompt_sets[0],
        parts=parts,
        validation_set=prompt_sets[1],
        validation=settings.validation,
    )


def _open_checkpointer(
    settings: RunSettings,
    state: RunState,
    records: RunRecords,
    budget: TimeBudget,
    stack: contextlib.AsyncExitStack,
    start: Boundary,
) -> Checkpointer:
    writer = stack.enter_context(ThreadPoolExecutor(1, "rewardflow-checkpoint"))
    checkpointer = Checkpointer(
        settings, store_of(settings), take=state.take, flush=records.flush, writer=writer, budget=budget
    )
    checkpointer.go_on(start)
    stack.push_async_callback(checkpointer.settle)
    if settings.checkpoint.on_signal:
        stack.enter_context(saving_on_signal(checkpointer))
    return checkpointer


def _make_flow(
    parts: FlowParts,
    checks: StepChecks,
    records: RunRecords | None,
    saver: Checkpointer | None,
    on_step: OnStep | None,
    on_validation: OnValidation | None,
) -> Flow:
    own = [one for one in (records, saver) if one is not None]
    tell = _tell_all([*(one.stepped for one in own), on_step])
    return Flow(
        parts,
        on_step=lambda report: tell(checks(report)),
        on_rollouts=None if records is None or records.rollouts is None else records.rollouts.write,
        on_validation=_tell_all([*(one.validated for one in own), on_validation]),
        at_boundary=saver,
        sink=None if records is None else records.devices,
    )


def _tell_all(listeners: Sequence[Callable[[T], None] | None]) -> Callable[[T], None]:
    def tell(news: T) -> None:
        for listener in listeners:
            if listener is not None:
                listener(news)

    return tell
