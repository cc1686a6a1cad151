"""A training run in one process: policy, engine, trainer, agent and loop on this machine's device.

Always true: what is cheap to find wrong is found first: the settings and the data, then the reward service, then what
can be said of the model without its weights; only then is anything written and the model loaded. Everything that was
opened is closed in reverse order, however the run ends.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib.util
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewardflow.config.tree import RunSettings
from rewardflow.data.cursor import PromptCursor
from rewardflow.data.opening import open_prompts
from rewardflow.data.prompt_set import PromptSet
from rewardflow.device_thread import DeviceThread
from rewardflow.errors import InvalidInput
from rewardflow.events import EventSink
from rewardflow.flow.parts import Parts
from rewardflow.flow.reports import StepReport
from rewardflow.flow.run import Flow
from rewardflow.flow.seams import Generator
from rewardflow.reward.agent import RewardAgent
from rewardflow.run_directory import RUN_FILE, SETTINGS_FILE, RunDirectory
from rewardflow.runtime.probe import probe
from rewardflow.runtime.reward_of_run import build_agent
from rewardflow.runtime.settings_file import write_settings

if TYPE_CHECKING:
    from rewardflow.generate.hf import HFEngine
    from rewardflow.policy.loading import Policy
    from rewardflow.train.torch_trainer import TorchTrainer

OnStep = Callable[[StepReport], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedRun:
    """A run that is ready to start: `await run.flow.run(steps=run.settings.steps)`."""

    settings: RunSettings
    agent: RewardAgent
    policy: Policy
    trainer: TorchTrainer
    parts: Parts
    flow: Flow
    prompts: PromptCursor

    async def train(self) -> None:
        await self.flow.run(steps=self.settings.steps)


@contextlib.asynccontextmanager
async def embedded(
    settings: RunSettings,
    *,
    folder: Path | None = None,
    on_step: OnStep | None = None,
    agent: RewardAgent | None = None,
    probes: bool = True,
) -> AsyncIterator[EmbeddedRun]:
    """Open everything that a run needs. `agent` replaces the one that the settings describe.

    `probes`: the reward that the settings describe is asked about one sample first, as `runtime.probe` says.
    """
    check_installed()
    check_run_dir(settings)
    folder = folder or folder_of(settings)
    is_probed = probes and agent is None
    agent = agent or build_agent(settings, folder=folder)
    prompt_set = open_prompts(settings.data, seed=settings.seed)
    if is_probed:
        await probe(settings, prompt_set[0], folder=folder)
    async with contextlib.AsyncExitStack() as stack:
        thread = stack.enter_context(DeviceThread("device"))
        await thread.run(lambda: rehearse(settings, prompt_set))
        record, sink = _open_records(settings, stack)
        await stack.enter_async_context(agent)
        policy = await thread.run(lambda: _load(settings))
        generator, keep = await _make_generator(settings, policy, thread, stack)
        prompts = PromptCursor(prompt_set, seed=settings.seed, shuffle=settings.data.shuffle, keep=keep)
        trainer = await thread.run(lambda: _make_trainer(settings, policy, thread))
        parts = _make_parts(settings, prompts, generator, agent, trainer)
        flow = Flow(parts, on_step=_both(record, on_step), sink=sink)
        yield EmbeddedRun(
            settings=settings, agent=agent, policy=policy, trainer=trainer, parts=parts, flow=flow, prompts=prompts
        )


def check_installed() -> None:
    """Whether what only training needs is there; nothing of it is imported."""
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        raise InvalidInput(f"training needs {' and '.join(missing)}: pip install 'rewardflow[train]'")


def check_run_dir(settings: RunSettings) -> None:
    if settings.run_dir is not None and (Path(settings.run_dir) / RUN_FILE).exists():
        raise InvalidInput(f"run_dir must be a new directory, got {settings.run_dir}, which holds a run already")


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
    _make_trainer(settings, policy, thread)
    return policy


def _open_records(settings: RunSettings, stack: contextlib.AsyncExitStack) -> tuple[OnStep | None, EventSink | None]:
    if settings.run_dir is None:
        return None, None
    directory = RunDirectory.create(settings.run_dir)
    write_settings(settings, directory.path / SETTINGS_FILE)
    metrics = directory.open_metrics()
    stack.callback(metrics.close)
    return lambda report: metrics.append(report.to_json()), stack.enter_context(directory.open_device_events())


def _load(settings: RunSettings) -> Policy:
    import torch

    from rewardflow.policy.loading import load_policy

    if settings.trainer.threads is not None:
        torch.set_num_threads(settings.trainer.threads)
    policy = load_policy(settings.policy, seed=settings.seed)
    policy.model.to(device_of(settings))
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


def make_engine(settings: RunSettings, policy: Policy, thread: DeviceThread) -> HFEngine:
    import torch

    from rewardflow.generate.hf import HFEngine

    autocast = None if settings.trainer.autocast is None else getattr(torch, settings.trainer.autocast)
    return HFEngine(policy, settings.generation, seed=settings.seed, thread=thread, autocast=autocast)


async def _make_generator(
    settings: RunSettings, policy: Policy, thread: DeviceThread, stack: contextlib.AsyncExitStack
) -> tuple[Generator, Callable[[Any], bool]]:
    """The engine on the trainer's own weights, or on a copy of its own that is updated by publishing."""
    from rewardflow.sync.copied_weights import CopiedWeights

    if settings.schedule.placement == "colocated":
        engine = make_engine(settings, policy, thread)
        return engine, lambda prompt: bool(engine.encoder.fit([prompt]).kept)
    own_thread = stack.enter_context(DeviceThread("generator"))
    own = dataclasses.replace(policy, model=await thread.run(lambda: copy.deepcopy(policy.model)))
    engine = make_engine(settings, own, own_thread)
    copied = CopiedWeights(engine, original=policy.model, copy=own.model, thread=own_thread)
    return copied, lambda prompt: bool(engine.encoder.fit([prompt]).kept)


def _make_trainer(settings: RunSettings, policy: Policy, thread: DeviceThread) -> TorchTrainer:
    from rewardflow.train.torch_trainer import TorchTrainer

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
    )


def _make_parts(
    settings: RunSettings, prompts: PromptCursor, generator: Generator, agent: RewardAgent, trainer: TorchTrainer
) -> Parts:
    from rewardflow.algo.advantages import make_advantages

    return Parts(
        schedule=settings.schedule,
        prompts=prompts,
        generator=generator,
        agent=agent,
        trainer=trainer,
        advantages=make_advantages(settings.algorithm),
        group_size=settings.generation.group_size,
        micro_batch_tokens=settings.trainer.micro_batch_tokens,
        takes_reference=settings.algorithm.needs_reference,
        takes_behaviour=settings.algorithm.needs_behaviour and settings.algorithm.behaviour == "trainer",
    )


def _both(one: OnStep | None, other: OnStep | None) -> OnStep:
    def on_step(report: StepReport) -> None:
        for told in (one, other):
            if told is not None:
                told(report)

    return on_step
