"""Opens a run, in this process or on a Ray cluster.

Always true: mistakes that are cheap to find are found first: in the settings and the data, then in the reward service,
then those of the model that show without its weights; only then is anything written and the model loaded. Everything
that was opened is closed in reverse order, however the run ends. A run that resumes is built like a new one, and then
its state is put back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypedDict, TypeVar

from rewardflow.checkpoint.manifest import Checkpoint
from rewardflow.data.cursor import PromptCursor
from rewardflow.data.prompt_set import PromptSet
from rewardflow.flow.flow_parts import FlowParts
from rewardflow.flow.protocols import Generator, ValueEstimator
from rewardflow.flow.records import Boundary, JudgedRollout, Prompt
from rewardflow.flow.reports import StepReport
from rewardflow.flow.run import Flow
from rewardflow.flow.validation.measurement import OnValidation
from rewardflow.flow.validation.validation_plan import ValidationPlan
from rewardflow.generate.samplings import training_sampling
from rewardflow.observe.run_directory import JUDGE_PROBES_FILE, PAUSED_FILE
from rewardflow.runtime.audit import AuditMonitor
from rewardflow.runtime.checkpointing import Checkpointer, StoppedEarly, TimeBudget, saving_on_signal
from rewardflow.runtime.failure_watch import FailureWatch
from rewardflow.runtime.judge_probes import JudgeProbes
from rewardflow.runtime.pausing import PauseFile
from rewardflow.runtime.prepare import PreparedRun, RunStart, check_start, prepare, store_of
from rewardflow.runtime.records.run_records import RunRecords, open_records
from rewardflow.runtime.records.step_checks import StepChecks
from rewardflow.runtime.reward_probe import probe, probe_open
from rewardflow.runtime.run_agent import RunAgent, keeps_texts, shared_cluster
from rewardflow.runtime.run_state import CheckpointedTrainer, RunState
from rewardflow.runtime.validation_setup import check_reward_fits, make_plan
from rewardflow.settings.run_settings import RunSettings

T = TypeVar("T")

OnStep = Callable[[StepReport], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machinery:
    """The parts that compute in a run."""

    generator: Generator
    trainer: CheckpointedTrainer
    critic: ValueEstimator | None
    fits: Callable[[Prompt], bool]  # whether a prompt can be generated from
    peak_memory_bytes: Callable[[], int | None]
    settings: RunSettings  # of the run, with values for what they leave to the device
    num_replicas: int = 1  # that share the samples of a micro-batch


class Runtime(AbstractAsyncContextManager["Runtime"], Protocol):
    """The processes that a run computes in. The caller enters it before anything is loaded, and leaves it last."""

    async def rehearse(self, prompt_set: PromptSet, validation_set: PromptSet | None) -> tuple[Prompt, ...]:
        """Finds the mistakes that show before anything is loaded; returns the prompts to measure with."""

    async def load(self) -> Machinery:
        """Loads everything that a training run computes with."""

    async def rehearse_evaluation(self, prompt_set: PromptSet) -> tuple[Prompt, ...]:
        """As `rehearse`, for a run that only measures."""

    async def load_evaluation(self, checkpoint: Checkpoint | None, version: int) -> Generator:
        """Loads what generates, with the weights of the checkpoint or else of `policy.model`, as this version."""


def runtime_of(settings: RunSettings, tell: Callable[[str], None] | None = None, *, trains: bool = True) -> Runtime:
    """Returns the runtime that `runtime.kind` names. It calls `tell` with what a slow start waits for.

    `trains=False` is for an evaluation.
    """
    from rewardflow.runtime.local import LocalRuntime
    from rewardflow.runtime.on_ray.ray_runtime import RayRuntime

    return RayRuntime(settings, tell=tell) if settings.runtime.kind == "ray" else LocalRuntime(settings, trains=trains)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """A run that is ready to start or to resume: `await run.train()`."""

    settings: RunSettings
    agent: RunAgent
    parts: FlowParts
    flow: Flow
    prompts: PromptCursor
    start: Boundary
    checkpointer: Checkpointer | None  # with a run directory

    async def train(self) -> int:
        """Trains; returns how many of the run's steps are trained: all, unless the checkpointer ended it before."""
        try:
            await self.flow.run(steps=self.settings.steps, start=self.start)
        except StoppedEarly as end:
            return end.next_step
        return max(self.settings.steps, self.start.next_step)


class OpenOptions(TypedDict, total=False):
    """The options of `open_run`, which explains them."""

    folder: Path | None
    on_step: OnStep | None
    on_validation: OnValidation | None
    agent: RunAgent | None
    probes: bool
    resume: Checkpoint | bool
    start: RunStart | None


@contextlib.asynccontextmanager
async def open_run(
    settings: RunSettings,
    *,
    runtime: Runtime | None = None,
    tell: Callable[[str], None] | None = None,
    folder: Path | None = None,
    on_step: OnStep | None = None,
    on_validation: OnValidation | None = None,
    agent: RunAgent | None = None,
    probes: bool = True,
    resume: Checkpoint | bool = False,
    start: RunStart | None = None,
) -> AsyncIterator[OpenRun]:
    """Opens everything that a run needs, where `runtime.kind` says.

    `runtime` replaces the one that the settings name; `tell` is called with what a slow start waits for.
    `folder` is where relative paths of the reward's contents start.
    `agent` replaces the one that the settings describe.
    `probes`: ask the reward that the settings describe about one sample first (`runtime.reward_probe`).
    `resume`: continue the run in `run_dir` from its latest checkpoint, or from the one given, which `find_checkpoint`
    found; a run without a checkpoint starts at the beginning, with its journal.
    `start`: what `check_start` found, if the caller has called it already; it replaces `resume`.
    """
    budget = TimeBudget(settings.checkpoint.max_hours, started_s=asyncio.get_running_loop().time())
    runtime = runtime or runtime_of(settings, tell)
    if start is None:
        start = await asyncio.to_thread(check_start, settings, resume=resume)
    prepared = prepare(start, folder=folder, agent=agent)
    probes = probes and agent is None
    if probes:
        await probe_own_agent(prepared)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(runtime)
        measured = await runtime.rehearse(prepared.prompt_set, prepared.validation_set)
        stack.enter_context(shared_cluster(settings))
        texts = keeps_texts(prepared.agent, settings, folder=prepared.folder)
        records = open_records(settings, stack, resumes=start.resumes, checkpoint=start.checkpoint, keeps_texts=texts)
        await open_agent(prepared, stack, probes=probes)
        machinery = await runtime.load()
        prompts = PromptCursor(
            prepared.prompt_set, seed=settings.seed, shuffle=settings.data.shuffle, keep=machinery.fits
        )
        parts = _make_parts(prepared, prompts, machinery, make_plan(settings, measured))
        state = _state_of(prepared, machinery, parts, prompts)
        first = Boundary(next_step=0) if start.checkpoint is None else await state.put_back(start.checkpoint)
        saver = None if records is None else _open_checkpointer(settings, state, records, budget, stack, first)
        pause = None if settings.audit is None else PauseFile(Path(str(settings.run_dir)) / PAUSED_FILE)
        audit = await _open_audit(prepared, saver, pause, stack, first, keeps_texts=texts)
        checks = StepChecks(machinery.settings, parts.advantages, machinery.peak_memory_bytes)
        watched = _tell_all([on_step, FailureWatch(settings.failures).stepped])
        yield OpenRun(
            settings=settings,
            agent=prepared.agent,
            parts=parts,
            flow=_make_flow(parts, checks, records, _boundary(saver, pause), watched, on_validation, audit),
            prompts=prompts,
            start=first,
            checkpointer=saver,
        )


async def probe_own_agent(prepared: PreparedRun) -> None:
    """Asks the reward about one sample, before anything is opened; a shared agent is asked by `open_agent`."""
    if not prepared.is_agent_shared:
        await probe(prepared.settings, prepared.prompt_set[0], folder=prepared.folder)


async def open_agent(prepared: PreparedRun, stack: contextlib.AsyncExitStack, *, probes: bool) -> None:
    """Enters the agent, and checks that it fits the validation. `probes`: asks a shared agent about one sample."""
    await stack.enter_async_context(prepared.agent)
    if probes and prepared.is_agent_shared:
        await probe_open(prepared.agent, prepared.prompt_set[0])
    check_reward_fits(prepared.settings.validation, prepared.agent)


def _make_parts(
    prepared: PreparedRun, prompts: PromptCursor, machinery: Machinery, validation: ValidationPlan | None
) -> FlowParts:
    from rewardflow.algo.advantages import make_advantages

    settings = machinery.settings
    return FlowParts(
        schedule=settings.schedule,
        prompts=prompts,
        generator=machinery.generator,
        agent=prepared.agent,
        trainer=machinery.trainer,
        advantages=make_advantages(settings.algorithm),
        group_size=settings.generation.group_size,
        sampling=training_sampling(settings),
        micro_batch_tokens=settings.trainer.pass_tokens * machinery.num_replicas,
        takes_reference=settings.algorithm.needs_reference,
        takes_behaviour=settings.algorithm.needs_behaviour and settings.algorithm.behaviour == "trainer",
        old_log_probs=settings.algorithm.old_log_probs,
        critic=machinery.critic,
        has_baseline=settings.algorithm.kind.greedy,
        mask_truncated=settings.algorithm.mask_truncated,
        validation=validation,
    )


def _state_of(prepared: PreparedRun, machinery: Machinery, parts: FlowParts, prompts: PromptCursor) -> RunState:
    return RunState(
        trainer=machinery.trainer,
        prompts=prompts,
        prompt_set=prepared.prompt_set,
        parts=parts,
        validation_set=prepared.validation_set,
        validation=prepared.settings.validation,
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


async def _open_audit(
    prepared: PreparedRun,
    saver: Checkpointer | None,
    pause: PauseFile | None,
    stack: contextlib.AsyncExitStack,
    start: Boundary,
    *,
    keeps_texts: bool,
) -> AuditMonitor | None:
    settings = prepared.settings
    if settings.audit is None or pause is None or saver is None:  # an audit needs a run directory
        return None
    run_dir, own = Path(str(settings.run_dir)), settings.audit

    def act(what: str) -> None:
        if own.on_alarm == "stop":
            saver.stop("audit")
        elif own.on_alarm == "pause":
            saver.ask()
            pause.begin(what)

    probes = JudgeProbes(
        own,
        prepared.agent,
        run_dir / JUDGE_PROBES_FILE,
        planned_steps=settings.steps,
        keeps_texts=keeps_texts,
        alarmed=lambda what: monitor.alarm(what),
    )
    monitor = AuditMonitor(
        own, run_dir, planned_steps=settings.steps, next_step=start.next_step, on_alarm=act, probes=probes
    )
    return await stack.enter_async_context(monitor)


class _PausingCheckpointer:
    """Saves at the boundary, and then waits while the run is paused."""

    def __init__(self, saver: Checkpointer, pause: PauseFile) -> None:
        self._saver = saver
        self._pause = pause
        self.stepped = saver.stepped
        self.validated = saver.validated

    async def __call__(self, boundary: Boundary) -> None:
        await self._saver(boundary)
        await self._pause.wait_until_removed(lambda: self._saver.is_stopping)
        if self._saver.is_stopping:  # somebody ended the run while it waited
            await self._saver(boundary)


def _boundary(saver: Checkpointer | None, pause: PauseFile | None) -> Checkpointer | _PausingCheckpointer | None:
    return saver if saver is None or pause is None else _PausingCheckpointer(saver, pause)


def _make_flow(
    parts: FlowParts,
    checks: StepChecks,
    records: RunRecords | None,
    saver: Checkpointer | _PausingCheckpointer | None,
    on_step: OnStep | None,
    on_validation: OnValidation | None,
    audit: AuditMonitor | None,
) -> Flow:
    own = [one for one in (records, saver) if one is not None]
    tell = _tell_all([*(one.stepped for one in own), on_step])
    return Flow(
        parts,
        on_step=lambda report: tell(checks(report)),
        on_rollouts=_on_rollouts(records, audit),
        on_validation=_tell_all([*(one.validated for one in own), on_validation]),
        at_boundary=saver,
        sink=None if records is None else records.devices,
    )


def _on_rollouts(
    records: RunRecords | None, audit: AuditMonitor | None
) -> Callable[[int, Iterable[JudgedRollout]], None] | None:
    write = None if records is None or records.rollouts is None else records.rollouts.write
    if audit is None:
        return write

    def tell(step: int, judged: Iterable[JudgedRollout]) -> None:
        listed = tuple(judged)  # both read it
        if write is not None:
            write(step, listed)
        audit.audit(step, listed)

    return tell


def _tell_all(listeners: Sequence[Callable[[T], None] | None]) -> Callable[[T], None]:
    def tell(news: T) -> None:
        for listener in listeners:
            if listener is not None:
                listener(news)

    return tell
