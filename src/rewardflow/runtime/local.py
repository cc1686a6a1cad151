"""The runtime of one process: policy, engine and trainer on this machine's device.

Always true: torch computes on one device thread, or on two where generation has its own weights. The thread runs from
entering to leaving; what was opened on it is closed before, in reverse order.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from rewardflow.checkpoint.manifest import Checkpoint
from rewardflow.data.prompt_set import PromptSet
from rewardflow.errors import InvalidInput
from rewardflow.flow.device_thread import DeviceThread
from rewardflow.flow.protocols import Generator
from rewardflow.flow.records import Prompt
from rewardflow.generate.engines import Engine, NamedTensors, engine_factory
from rewardflow.generate.samplings import samplings_of_run, validation_sampling
from rewardflow.runtime.memory_estimate import device_memory
from rewardflow.runtime.memory_plan import complete_for
from rewardflow.runtime.memory_tuning import keep_freed_memory, without_what_lasts
from rewardflow.runtime.open_run import Machinery, OpenOptions, OpenRun, open_run
from rewardflow.runtime.peak_memory import peak_memory_bytes
from rewardflow.runtime.validation_setup import fitting_prompts
from rewardflow.settings.device_defaults import DeviceKind, for_device
from rewardflow.settings.run_settings import RunSettings
from rewardflow.train.backends import backend_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rewardflow.policy.load_policy import Policy
    from rewardflow.train.device_trainer import DeviceTrainer


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedRun(OpenRun):
    """An open run whose model and trainer are in this process."""

    policy: Policy
    trainer: DeviceTrainer


@contextlib.asynccontextmanager
async def embedded(settings: RunSettings, **options: Unpack[OpenOptions]) -> AsyncIterator[EmbeddedRun]:
    """As `open_run`, in this process."""
    runtime = LocalRuntime(settings)
    async with open_run(settings, runtime=runtime, **options) as run:
        same = {field.name: getattr(run, field.name) for field in dataclasses.fields(run)}
        yield EmbeddedRun(**same, policy=runtime.policy, trainer=runtime.trainer)


class LocalRuntime:
    """A `Runtime` on one device thread. `load` sets `policy` and `trainer`."""

    policy: Policy
    trainer: DeviceTrainer

    def __init__(self, settings: RunSettings, *, trains: bool = True) -> None:
        """`trains=False` is for an evaluation, which needs no back end to train with."""
        if trains:
            backend_of(settings).check_one_process(settings)
        self._settings = settings
        self._thread = DeviceThread("device")
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._stack.enter_context(self._thread)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def rehearse(self, prompt_set: PromptSet, validation_set: PromptSet | None) -> tuple[Prompt, ...]:
        self._settings = settings = await self._thread.run(lambda: for_device_here(self._settings))
        policy = await self._thread.run(lambda: rehearse(settings, prompt_set))
        return await self._thread.run(lambda: rehearse_validation(settings, policy, validation_set))

    async def load(self) -> Machinery:
        thread = self._thread
        self._settings = settings = await thread.run(lambda: for_device_here(self._settings))
        self.policy = await thread.run(lambda: load(settings))
        self.trainer = await _open_trainer(settings, self.policy, thread, self._stack)
        engine = await _open_engine(settings, self.policy, self.trainer, thread, self._stack)
        self._stack.enter_context(without_what_lasts())
        return Machinery(
            generator=engine,
            trainer=self.trainer,
            critic=self.trainer if settings.algorithm.kind.critic else None,
            fits=lambda prompt: bool(engine.encoder.fit([prompt]).kept),
            peak_memory_bytes=partial(peak_memory_bytes, device_of(settings)),
            settings=settings,
        )

    async def rehearse_evaluation(self, prompt_set: PromptSet) -> tuple[Prompt, ...]:
        from rewardflow.policy.load_policy import outline_policy

        settings = self._settings
        return await self._thread.run(
            lambda: rehearse_validation(settings, outline_policy(settings.policy), prompt_set)
        )

    async def load_evaluation(self, checkpoint: Checkpoint | None, version: int) -> Generator:
        """Loads the engine alone, without a trainer."""
        self._settings = for_device(self._settings, await self._thread.run(lambda: device_kind(self._settings)))
        policy = await self._thread.run(lambda: _load_saved(self._settings, checkpoint))
        engine = make_measuring_engine(self._settings, policy, self._thread)
        await self._stack.enter_async_context(engine)
        await engine.publish(version)
        return engine


def rehearse(settings: RunSettings, prompt_set: PromptSet) -> Policy:
    """Builds engine and trainer without weights, to find their mistakes before anything is loaded."""
    from rewardflow.policy.load_policy import outline_policy

    device_of(settings)
    policy = outline_policy(settings.policy)
    thread = DeviceThread("rehearsal")
    make_engine(settings, policy, thread).encoder.fit([prompt_set[0]])
    backend_of(settings).rehearse(settings, policy, thread)
    return policy


def rehearse_validation(settings: RunSettings, policy: Policy, prompt_set: PromptSet | None) -> tuple[Prompt, ...]:
    """Returns the prompts to measure with, of which none is too long; the policy may be an outline."""
    if settings.validation is None or prompt_set is None:
        return ()
    return fitting_prompts(prompt_set, make_measuring_engine(settings, policy, DeviceThread("rehearsal")).encoder)


def load(settings: RunSettings) -> Policy:
    """Loads the policy with its weights onto the run's device."""
    from rewardflow.policy.load_policy import load_policy

    device = prepared_device(settings)
    policy = load_policy(settings.policy, seed=settings.seed)
    policy.model.to(device)
    return policy


def _load_saved(settings: RunSettings, checkpoint: Checkpoint | None) -> Policy:
    """Loads the policy with the weights of the checkpoint, if there is one."""
    from rewardflow.checkpoint.exported_model import read_policy

    policy = load(settings)
    if checkpoint is not None:
        read_policy(checkpoint, policy, settings.policy)
    return policy


def prepared_device(settings: RunSettings) -> Any:
    """Returns the device that this thread computes on from now on, with torch set up as the settings say."""
    import torch

    from rewardflow.policy.accelerator import use_device

    if settings.trainer.threads is not None:
        torch.set_num_threads(settings.trainer.threads)
    device = device_of(settings)
    if device.type == "cpu":
        keep_freed_memory()
    else:
        torch.set_float32_matmul_precision("high" if settings.trainer.tf32 else "highest")
        use_device(device)
    return device


def device_kind(settings: RunSettings) -> DeviceKind:
    return "cpu" if device_of(settings).type == "cpu" else "accelerator"


def for_device_here(settings: RunSettings) -> RunSettings:
    """Returns the settings with what they leave to the device of this process. This may plan its memory."""
    return complete_for(settings, device_kind(settings), device_memory(device_of(settings))).settings


def device_of(settings: RunSettings) -> Any:
    """Returns the device of the settings; for `auto` an accelerator, if there is one that can train, else the CPU."""
    import torch

    from rewardflow.policy.accelerator import accelerator, holds_float64

    if settings.trainer.device == "auto":
        found = accelerator()
        return torch.device("cpu") if found is None or not holds_float64(found) else found
    try:
        device = torch.device(settings.trainer.device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch says it in all these ways
        told = str(error).partition("\n")[0]
        raise InvalidInput(
            f"trainer.device must be a device of this machine, got {settings.trainer.device}: {told}"
        ) from error
    if not holds_float64(device):
        raise InvalidInput(
            "trainer.device must have numbers of 64 bits, in which sums are taken; Apple's GPUs have none, so train "
            f"there on the CPU, got {settings.trainer.device}"
        )
    return device


def make_engine(
    settings: RunSettings,
    policy: Policy,
    thread: DeviceThread,
    *,
    weights: Callable[[], NamedTensors] | None = None,
    is_fed: bool = False,
    engines_here: int = 1,
) -> Engine:
    """Makes the run's engine, for training and validation; starts nothing. Options are of `EngineFactory.make`."""
    return engine_factory(settings).make(
        settings,
        policy,
        thread,
        device=device_of(settings),
        samplings=samplings_of_run(settings),
        weights=weights,
        is_fed=is_fed,
        engines_here=engines_here,
    )


def make_measuring_engine(settings: RunSettings, policy: Policy, thread: DeviceThread) -> Engine:
    """Makes an engine for validation alone; starts nothing."""
    assert settings.validation is not None
    samplings = [validation_sampling(settings, settings.validation)]
    return engine_factory(settings).make(settings, policy, thread, device=device_of(settings), samplings=samplings)


async def _open_engine(
    settings: RunSettings,
    policy: Policy,
    trainer: DeviceTrainer,
    thread: DeviceThread,
    stack: contextlib.AsyncExitStack,
) -> Engine:
    """Opens an engine on the trainer's own weights, or on others that publishing updates."""
    import torch

    from rewardflow.policy.accelerator import use_device
    from rewardflow.policy.load_policy import outline_policy

    is_trained = backend_of(settings).trains_policy_model  # else the policy's weights are for generating alone
    uses_model, is_shared = engine_factory(settings).uses_policy_model, settings.schedule.placement == "colocated"
    own, own_thread = policy, thread
    if uses_model and not is_shared:
        own_thread = stack.enter_context(DeviceThread("generator"))
        await own_thread.run(lambda: use_device(device_of(settings)))
        if is_trained:
            own = dataclasses.replace(policy, model=await thread.run(lambda: _plain_copy(policy.model)))
    elif not uses_model and settings.policy.lora is not None:  # published weights have the names of the plain model
        own = await thread.run(lambda: outline_policy(settings.policy))
    has_trainers = uses_model and is_shared and is_trained
    weights = None if has_trainers else partial(trainer.weights, getattr(torch, settings.engine_dtype))
    return await stack.enter_async_context(make_engine(settings, own, own_thread, weights=weights))


def _plain_copy(model: PreTrainedModel) -> PreTrainedModel:
    """Copies a model without its adapters: published weights have them merged."""
    from rewardflow.policy.adapters import remove_adapters

    copied = copy.deepcopy(model)
    remove_adapters(copied)
    return copied


async def _open_trainer(
    settings: RunSettings, policy: Policy, thread: DeviceThread, stack: contextlib.AsyncExitStack
) -> DeviceTrainer:
    opened = contextlib.ExitStack()
    stack.push_async_callback(thread.run, opened.close)
    device = device_of(settings)
    trainer = backend_of(settings).open_alone(settings, policy, thread, device)
    return await thread.run(lambda: opened.enter_context(trainer))
