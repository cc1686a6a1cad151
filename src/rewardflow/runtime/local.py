"""A training run in one process: policy, engine, trainer, agent and loop on this machine's device.

Always true: everything of torch happens on one device thread, or on two where generation has weights of its own.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from rewardflow.data.prompt_set import PromptSet
from rewardflow.errors import InvalidInput
from rewardflow.flow.device_thread import DeviceThread
from rewardflow.flow.protocols import Generator
from rewardflow.flow.records import Prompt
from rewardflow.flow.validation_plan import ValidationPlan
from rewardflow.runtime.device_home import DeviceHome
from rewardflow.runtime.memory_tuning import keep_freed_memory, without_what_lasts
from rewardflow.runtime.open_run import Machinery, OpenOptions, OpenRun, opened
from rewardflow.runtime.peak_memory import peak_memory_bytes
from rewardflow.runtime.validation_setup import fitting_prompts, generation_of, make_plan
from rewardflow.settings.run_settings import GenerationSettings, RunSettings
from rewardflow.train.backends import backend_of

if TYPE_CHECKING:
    from rewardflow.generate.hf.engine import HFEngine
    from rewardflow.generate.vllm.engine import VllmEngine
    from rewardflow.generate.vllm.weight_source import NamedTensors
    from rewardflow.policy.load_policy import Policy
    from rewardflow.train.device_trainer import DeviceTrainer


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedRun(OpenRun):
    """With the model and the trainer, which are in this process."""

    policy: Policy
    trainer: DeviceTrainer


@contextlib.asynccontextmanager
async def embedded(settings: RunSettings, **options: Unpack[OpenOptions]) -> AsyncIterator[EmbeddedRun]:
    """As `opened`, in this process."""
    home = OwnProcess(settings)
    async with opened(settings, home, **options) as run:
        same = {field.name: getattr(run, field.name) for field in dataclasses.fields(run)}
        yield EmbeddedRun(**same, policy=home.policy, trainer=home.trainer)


class OwnProcess(DeviceHome):
    """A `Home` for a run; `policy` and `trainer` are there when it has loaded."""

    policy: Policy
    trainer: DeviceTrainer

    def __init__(self, settings: RunSettings) -> None:
        backend_of(settings).check_one_process(settings)
        super().__init__(settings)

    async def rehearse(self, prompt_set: PromptSet, validation_set: PromptSet | None) -> tuple[Prompt, ...]:
        return await self._thread.run(lambda: rehearse_all(self._settings, prompt_set, validation_set))

    async def load(self, measured: tuple[Prompt, ...]) -> Machinery:
        settings, thread = self._settings, self._thread
        self.policy = await thread.run(lambda: load(settings))
        self.trainer = await _open_trainer(settings, self.policy, thread, self._stack)
        engines = await _make_engines(settings, self.policy, self.trainer, thread, self._stack, measured)
        self._stack.enter_context(without_what_lasts())
        return Machinery(
            generator=engines.generator,
            trainer=self.trainer,
            critic=self.trainer if settings.algorithm.kind.critic else None,
            weights=self.trainer,
            fits=engines.keep,
            validation=engines.validation,
            peak_memory_bytes=partial(peak_memory_bytes, device_of(settings)),
        )


def rehearse(settings: RunSettings, prompt_set: PromptSet) -> Policy:
    """Build engine and trainer without weights, so that their mistakes are told before anything is loaded."""
    from rewardflow.policy.load_policy import outline_policy

    device_of(settings)
    policy = outline_policy(settings.policy)
    thread = DeviceThread("rehearsal")
    make_engine(settings, policy, thread).encoder.fit([prompt_set[0]])
    backend_of(settings).rehearse(settings, policy, thread)
    return policy


def rehearse_all(settings: RunSettings, prompt_set: PromptSet, validation_set: PromptSet | None) -> tuple[Prompt, ...]:
    """The prompts that the run will be measured with."""
    return rehearse_validation(settings, rehearse(settings, prompt_set), validation_set)


def rehearse_validation(settings: RunSettings, policy: Policy, prompt_set: PromptSet | None) -> tuple[Prompt, ...]:
    """The prompts that will be measured with, of which none is too long; the policy may be an outline."""
    if settings.validation is None or prompt_set is None:
        return ()
    return fitting_prompts(prompt_set, make_validation_engine(settings, policy, DeviceThread("rehearsal")))


def load(settings: RunSettings) -> Policy:
    """The policy with its weights, on the run's device."""
    from rewardflow.policy.load_policy import load_policy

    device = prepared_device(settings)
    policy = load_policy(settings.policy, seed=settings.seed)
    policy.model.to(device)
    return policy


def prepared_device(settings: RunSettings) -> Any:
    """Where this process will compute, with torch set as the run wants it."""
    import torch

    if settings.trainer.threads is not None:
        torch.set_num_threads(settings.trainer.threads)
    device = device_of(settings)
    if device.type == "cpu":
        keep_freed_memory()
    return device


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

    from rewardflow.generate.hf.engine import HFEngine

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
    weights: Callable[[], NamedTensors] | None = None,
    is_fed: bool = False,
) -> VllmEngine:
    """To be entered before it generates; `weights` and `is_fed` as `VllmEngine` has them."""
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
        weights=weights,
        is_fed=is_fed,
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
    trainer: DeviceTrainer,
    thread: DeviceThread,
    stack: contextlib.AsyncExitStack,
    measured: tuple[Prompt, ...],
) -> _Engines:
    """On the trainer's own weights, or on others that are updated by publishing."""
    from rewardflow.train.weight_sync import SyncedGenerator

    if settings.generation.engine == "vllm":
        return await _make_vllm_engines(settings, policy, trainer.weights, thread, stack, measured)
    is_trained = backend_of(settings).trains_policy_model
    is_shared = settings.schedule.placement == "colocated"
    own_thread = thread if is_shared else stack.enter_context(DeviceThread("generator"))
    own = policy
    if not is_shared and is_trained:  # else the policy's weights are for generating alone
        own = dataclasses.replace(policy, model=await thread.run(lambda: copy.deepcopy(policy.model)))
    engine = make_engine(settings, own, own_thread)
    generator: Generator = engine
    if not (is_shared and is_trained):
        generator = SyncedGenerator(engine, weights=trainer.weights, model=own.model, thread=own_thread)
    plan = None
    if settings.validation is not None:
        plan = make_plan(settings.validation, measured, make_validation_engine(settings, own, own_thread))
    return _Engines(generator, lambda prompt: bool(engine.encoder.fit([prompt]).kept), plan)


async def _open_trainer(
    settings: RunSettings, policy: Policy, thread: DeviceThread, stack: contextlib.AsyncExitStack
) -> DeviceTrainer:
    opened = contextlib.ExitStack()
    stack.push_async_callback(thread.run, opened.close)
    device = device_of(settings)
    trainer = backend_of(settings).open_alone(settings, policy, thread, device)
    return await thread.run(lambda: opened.enter_context(trainer))


async def _make_vllm_engines(
    settings: RunSettings,
    policy: Policy,
    weights: Callable[[], NamedTensors],
    thread: DeviceThread,
    stack: contextlib.AsyncExitStack,
    measured: tuple[Prompt, ...],
) -> _Engines:
    """One engine, which has weights of its own; what is measured with asks it as well. `weights` are the trainer's."""
    engine = make_vllm(settings, policy, thread, weights=weights)
    await stack.enter_async_context(engine)
    plan = None
    if settings.validation is not None:
        sampling = generation_of(settings, settings.validation)
        plan = make_plan(settings.validation, measured, engine.sharing(sampling, seed=settings.validation.seed))
    return _Engines(engine, lambda prompt: bool(engine.encoder.fit([prompt]).kept), plan)
