"""A training run in one process: policy, engine, trainer, agent and loop on this machine's device.

Always true: what is cheap to find wrong is found first: the settings and the data, then the reward service, then what
can be said of the model without its weights; only then is anything written and the model loaded. Everything that was
opened is closed in reverse order, however the run ends. A run that goes on from a checkpoint is made like a new one,
and then everything is put back.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import importlib.util
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rewardflow.checkpoint.manifest import Checkpoint
from rewardflow.config.tree import GenerationSettings, RunSettings
from rewardflow.data.cursor import PromptCursor
from rewardflow.data.opening import open_prompts
from rewardflow.data.prompt_set import PromptSet
from rewardflow.device_thread import DeviceThread
from rewardflow.errors import InvalidInput
from rewardflow.flow.parts import Parts
from rewardflow.flow.records import Boundary, Prompt
from rewardflow.flow.reports import StepReport
from rewardflow.flow.run import Flow
from rewardflow.flow.seams import Generator
from rewardflow.flow.validation import OnValidation
from rewardflow.flow.validation_plan import ValidationPlan
from rewardflow.reward.agent import RewardAgent
from rewardflow.run_directory import RUN_FILE
from rewardflow.runtime.checkpointing import Checkpointer, TimeIsUp, saving_on_signal
from rewardflow.runtime.heap import keep_freed_memory
from rewardflow.runtime.metrics_sinks import check_sinks
from rewardflow.runtime.probe import probe
from rewardflow.runtime.resuming import find_checkpoint, store_of
from rewardflow.runtime.reward_of_run import build_agent
from rewardflow.runtime.run_records import RunRecords, open_records
from rewardflow.runtime.run_state import RunState
from rewardflow.runtime.step_checks import StepChecks
from rewardflow.runtime.time_budget import TimeBudget
from rewardflow.runtime.validation import (
    check_reward_fits,
    fitting_prompts,
    generation_of,
    make_plan,
    open_validation_set,
)

if TYPE_CHECKING:
    from rewardflow.generate.hf import HFEngine
    from rewardflow.generate.vllm.engine import VllmEngine
    from rewardflow.policy.loading import Policy
    from rewardflow.train.megatron.trainer import MegatronTrainer
    from rewardflow.train.torch_trainer import TorchTrainer

T = TypeVar("T")

OnStep = Callable[[StepReport], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedRun:
    """A run that is ready to start, or to go on: `await run.train()`."""

    settings: RunSettings
    agent: RewardAgent
    policy: Policy
    trainer: TorchTrainer | MegatronTrainer
    parts: Parts
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


@contextlib.asynccontextmanager
async def embedded(
    settings: RunSettings,
    *,
    folder: Path | None = None,
    on_step: OnStep | None = None,
    on_validation: OnValidation | None = None,
    agent: RewardAgent | None = None,
    probes: bool = True,
    resume: Checkpoint | bool = False,
) -> AsyncIterator[EmbeddedRun]:
    """Open everything that a run needs. `agent` replaces the one that the settings describe.

    `probes`: the reward that the settings describe is asked about one sample first, as `runtime.probe` says.
    `resume`: go on with the run in `run_dir`, from its latest checkpoint, which `find_checkpoint` may have found
    already; a run without one starts again, with its journal.
    """
    budget = TimeBudget(settings.checkpoint.max_hours, started_s=asyncio.get_running_loop().time())
    _check_start(settings, resumes=resume is not False)
    checkpoint = await asyncio.to_thread(find_checkpoint, settings) if resume is True else resume or None
    folder = folder or folder_of(settings)
    is_probed = probes and agent is None
    agent = agent or build_agent(settings, folder=folder)
    prompt_set = open_prompts(settings.data, seed=settings.seed)
    validation_set = open_validation_set(settings)
    if is_probed:
        await probe(settings, prompt_set[0], folder=folder)
    async with contextlib.AsyncExitStack() as stack:
        thread = stack.enter_context(DeviceThread("device"))
        measured = await thread.run(lambda: _rehearse_all(settings, prompt_set, validation_set))
        records = open_records(settings, stack, resumes=resume is not False, checkpoint=checkpoint)
        await stack.enter_async_context(agent)
        check_reward_fits(settings.validation, agent)
        policy = await thread.run(lambda: load(settings))
        trainer = await _open_trainer(settings, policy, thread, stack)
        engines = await _make_engines(settings, policy, trainer, thread, stack, measured)
        prompts = PromptCursor(prompt_set, seed=settings.seed, shuffle=settings.data.shuffle, keep=engines.keep)
        parts = _make_parts(settings, prompts, engines, agent, trainer)
        state = RunState(
            trainer=trainer,
            prompts=prompts,
            prompt_set=prompt_set,
            parts=parts,
            thread=thread,
            validation_set=validation_set,
        )
        start = Boundary(next_step=0) if checkpoint is None else await state.put_back(checkpoint)
        saver = None if records is None else _open_checkpointer(settings, state, records, budget, stack, start)
        yield EmbeddedRun(
            settings=settings,
            agent=agent,
            policy=policy,
            trainer=trainer,
            parts=parts,
            flow=_make_flow(settings, parts, records, saver, on_step, on_validation),
            prompts=prompts,
            start=start,
            checkpointer=saver,
        )


def _check_start(settings: RunSettings, *, resumes: bool) -> None:
    check_installed()
    check_one_process(settings)
    check_sinks(settings)
    check_run_dir(settings, resumes=resumes)


def check_installed() -> None:
    """Whether what only training needs is there; nothing of it is imported."""
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        raise InvalidInput(f"training needs {' and '.join(missing)}: pip install 'rewardflow[train]'")


def check_one_process(settings: RunSettings) -> None:
    """Whether Megatron, if it trains, is there and needs no more than this process."""
    if settings.trainer.backend != "megatron":
        return
    if settings.trainer.megatron.num_ranks > 1:
        raise InvalidInput(
            "a run in one process has one rank, so all sizes of trainer.megatron must be 1, "
            f"got {settings.trainer.megatron.num_ranks} ranks for one model"
        )
    if importlib.util.find_spec("megatron") is None:
        raise InvalidInput("trainer.backend=megatron needs megatron-core: pip install 'rewardflow[megatron]'")


def check_run_dir(settings: RunSettings, *, resumes: bool = False) -> None:
    if resumes:
        store_of(settings)
    elif settings.run_dir is not None and (Path(settings.run_dir) / RUN_FILE).exists():
        raise InvalidInput(
            f"run_dir must be a new directory, got {settings.run_dir}, which holds a run already (--resume goes on "
            "with it)"
        )


def folder_of(settings: RunSettings) -> Path:
    """Where relative paths of the reward's contents start."""
    return Path.cwd() if settings.reward_folder is None else Path(settings.reward_folder)


def rehearse(settings: RunSettings, prompt_set: PromptSet) -> Policy:
    """Build engine and trainer without weights, so that their mistakes are told before anything is loaded."""
    from rewardflow.policy.loading import outline_policy

    device_of(settings)
    policy = outline_policy(settings.policy)
    thread = DeviceThread("rehearsal")
    make_engine(settings, policy, thread).encoder.fit([prompt_set[0]])
    if settings.trainer.backend == "megatron":
        from rewardflow.train.megatron.shape import ModelShape

        ModelShape.of(policy.model.config)
    else:
        _make_trainer(settings, policy, thread)
    return policy


def _rehearse_all(settings: RunSettings, prompt_set: PromptSet, validation_set: PromptSet | None) -> tuple[Prompt, ...]:
    """The prompts that the run will be measured with."""
    return rehearse_validation(settings, rehearse(settings, prompt_set), validation_set)


def rehearse_validation(settings: RunSettings, policy: Policy, prompt_set: PromptSet | None) -> tuple[Prompt, ...]:
    """The prompts that will be measured with, of which none is too long; the policy may be an outline."""
    if settings.validation is None or prompt_set is None:
        return ()
    return fitting_prompts(prompt_set, make_validation_engine(settings, policy, DeviceThread("rehearsal")))


def load(settings: RunSettings) -> Policy:
    """The policy with its weights, on the run's device."""
    import torch

    from rewardflow.policy.loading import load_policy

    if settings.trainer.threads is not None:
        torch.set_num_threads(settings.trainer.threads)
    device = device_of(settings)
    if device.type == "cpu":
        keep_freed_memory()
    policy = load_policy(settings.policy, seed=settings.seed)
    policy.model.to(device)
    return policy


def device_of(settings: RunSettings) -> Any:
    """Where the model goes: what the settings say, else an accelerator if there is one."""
    import torch

    if settings.trainer.device == "auto":
        return torch.accelerator.current_accelerator() or torch.device("cpu")
    try:
        device = torch.device(settings.trainer.device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch says it in all these ways
        told = str(error).partition("\n")[0]
        raise InvalidInput(
            f"trainer.device must be a device of this machine, got {settings.trainer.device}: {told}"
        ) from error
    return device


def make_validation_engine(settings: RunSettings, policy: Policy, thread: DeviceThread) -> HFEngine | VllmEngine:
    """On the same weights as the run's own; nothing is started yet."""
    validation = settings.validation
    assert validation is not None
    return make_engine(settings, policy, thread, generation=generation_of(settings, validation), seed=validation.seed)


def make_engine(
    settings: RunSettings,
    policy: Policy,
    thread: DeviceThread,
    *,
    generation: GenerationSettings | None = None,
    seed: int | None = None,
) -> HFEngine | VllmEngine:
    """Training's, unless told otherwise; nothing is started yet."""
    import torch

    from rewardflow.generate.hf import HFEngine

    generation = generation or settings.generation
    seed = settings.seed if seed is None else seed
    autocast = None if settings.trainer.autocast is None else getattr(torch, settings.trainer.autocast)
    if generation.engine == "vllm":
        return make_vllm(settings, policy, thread, generation=generation, seed=seed)
    return HFEngine(policy, generation, seed=seed, thread=thread, autocast=autocast)


def make_vllm(
    settings: RunSettings,
    policy: Policy,
    thread: DeviceThread,
    *,
    generation: GenerationSettings | None = None,
    seed: int | None = None,
) -> VllmEngine:
    """To be entered before it generates."""
    import torch

    from rewardflow.generate.vllm.engine import VllmEngine

    generation = generation or settings.generation
    device = device_of(settings)
    if device.type == "cpu" and settings.vllm.transfer in ("ipc", "nccl"):
        raise InvalidInput(f"vllm.transfer={settings.vllm.transfer} needs a GPU, got trainer.device={device}")
    if device.type == "cpu" and settings.vllm.sleep:
        raise InvalidInput(f"vllm.sleep gives a GPU's memory back, got trainer.device={device}")
    measured = None if settings.validation is None else settings.validation.max_response_tokens
    return VllmEngine(
        policy,
        generation,
        settings.vllm,
        seed=settings.seed if seed is None else seed,
        thread=thread,
        dtype=getattr(torch, settings.trainer.autocast or settings.policy.dtype),
        is_colocated=settings.schedule.placement == "colocated",
        longest_response=max(generation.max_response_tokens, measured or 0),
    )


@dataclass(frozen=True, slots=True)
class _Engines:
    """What generates for training, which prompts it can, and what is measured with."""

    generator: Generator
    keep: Callable[[Prompt], bool]
    validation: ValidationPlan | None


async def _make_engines(
    settings: RunSettings,
    policy: Policy,
    trainer: TorchTrainer | MegatronTrainer,
    thread: DeviceThread,
    stack: contextlib.AsyncExitStack,
    measured: tuple[Prompt, ...],
) -> _Engines:
    """On the trainer's own weights, or on others that are updated by publishing."""
    from rewardflow.sync.copied_weights import CopiedWeights
    from rewardflow.sync.named_weights import NamedWeights
    from rewardflow.train.torch_trainer import TorchTrainer

    if settings.generation.engine == "vllm":
        return await _make_vllm_engines(settings, policy, thread, stack, measured)
    is_shared = settings.schedule.placement == "colocated"
    own_thread = thread if is_shared else stack.enter_context(DeviceThread("generator"))
    own = policy
    if not is_shared and isinstance(trainer, TorchTrainer):  # else the policy's weights are for generating alone
        own = dataclasses.replace(policy, model=await thread.run(lambda: copy.deepcopy(policy.model)))
    engine = make_engine(settings, own, own_thread)
    generator: Generator = engine
    if not isinstance(trainer, TorchTrainer):
        generator = NamedWeights(engine, weights=trainer.all_weights, model=own.model, thread=own_thread)
    elif not is_shared:
        generator = CopiedWeights(engine, original=policy.model, copy=own.model, thread=own_thread)
    plan = None
    if settings.validation is not None:
        plan = make_plan(settings.validation, measured, make_validation_engine(settings, own, own_thread))
    return _Engines(generator, lambda prompt: bool(engine.encoder.fit([prompt]).kept), plan)


async def _open_trainer(
    settings: RunSettings, policy: Policy, thread: DeviceThread, stack: contextlib.AsyncExitStack
) -> TorchTrainer | MegatronTrainer:
    if settings.trainer.backend == "fsdp2":
        return await thread.run(lambda: _make_trainer(settings, policy, thread))
    from rewardflow.runtime.lone_megatron import alone_in_the_world, make_trainer

    world = contextlib.ExitStack()
    stack.push_async_callback(thread.run, world.close)
    device = device_of(settings)
    layout = await thread.run(lambda: world.enter_context(alone_in_the_world(settings.trainer.megatron, device)))
    return await thread.run(lambda: make_trainer(settings, policy, layout, thread))


async def _make_vllm_engines(
    settings: RunSettings,
    policy: Policy,
    thread: DeviceThread,
    stack: contextlib.AsyncExitStack,
    measured: tuple[Prompt, ...],
) -> _Engines:
    """One engine, which has weights of its own; what is measured with asks it as well."""
    engine = make_vllm(settings, policy, thread)
    await stack.enter_async_context(engine)
    plan = None
    if settings.validation is not None:
        sampling = generation_of(settings, settings.validation)
        plan = make_plan(settings.validation, measured, engine.sharing(sampling, seed=settings.validation.seed))
    return _Engines(engine, lambda prompt: bool(engine.encoder.fit([prompt]).kept), plan)


def _make_trainer(settings: RunSettings, policy: Policy, thread: DeviceThread) -> TorchTrainer:
    from rewardflow.policy.value_model import build_value_model
    from rewardflow.train.critic import CriticPart
    from rewardflow.train.torch_trainer import TorchTrainer

    critic = None
    if settings.algorithm.kind.critic:
        value_model = build_value_model(policy, settings.critic, settings.policy, seed=settings.seed)
        critic = CriticPart(model=value_model, settings=settings.critic)
    return TorchTrainer(
        policy.model,
        trainer=settings.trainer,
        algorithm=settings.algorithm,
        uses_old=settings.schedule.needs_old_log_probs,
        temperature=settings.generation.temperature,
        max_response_tokens=settings.generation.max_response_tokens,
        total_steps=settings.steps,
        thread=thread,
        reference=policy.reference() if settings.algorithm.needs_reference else None,
        critic=critic,
    )


def _make_parts(
    settings: RunSettings,
    prompts: PromptCursor,
    engines: _Engines,
    agent: RewardAgent,
    trainer: TorchTrainer | MegatronTrainer,
) -> Parts:
    from rewardflow.algo.advantages import make_advantages
    from rewardflow.train.torch_trainer import TorchTrainer

    return Parts(
        schedule=settings.schedule,
        prompts=prompts,
        generator=engines.generator,
        agent=agent,
        trainer=trainer,
        advantages=make_advantages(settings.algorithm),
        group_size=settings.generation.group_size,
        micro_batch_tokens=settings.trainer.micro_batch_tokens,
        takes_reference=settings.algorithm.needs_reference,
        takes_behaviour=settings.algorithm.needs_behaviour and settings.algorithm.behaviour == "trainer",
        takes_old=settings.algorithm.takes_old,
        critic=trainer if settings.algorithm.kind.critic and isinstance(trainer, TorchTrainer) else None,
        has_baseline=settings.algorithm.kind.greedy,
        validation=engines.validation,
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
    settings: RunSettings,
    parts: Parts,
    records: RunRecords | None,
    saver: Checkpointer | None,
    on_step: OnStep | None,
    on_validation: OnValidation | None,
) -> Flow:
    checks = StepChecks(settings, device_of(settings))
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
