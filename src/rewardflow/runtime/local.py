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
from rewardflow.flow.records import Prompt
from rewardflow.generate.engines import Engine, NamedTensors, engine_factory
from rewardflow.generate.samplings import samplings_of_run, validation_sampling
from rewardflow.runtime.device_home import DeviceHome
from rewardflow.runtime.memory_tuning import keep_freed_memory, without_what_lasts
from rewardflow.runtime.open_run import Machinery, OpenOptions, OpenRun, opened
from rewardflow.runtime.peak_memory import peak_memory_bytes
from rewardflow.runtime.validation_setup import fitting_prompts
from rewardflow.settings.run_settings import RunSettings
from rewardflow.train.backends import backend_of

if TYPE_CHECKING:
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

    async def load(self) -> Machinery:
        settings, thread = self._settings, self._thread
        self.policy = await thread.run(lambda: load(settings))
        self.trainer = await _open_trainer(settings, self.policy, thread, self._stack)
        engine = await _open_engine(settings, self.policy, self.trainer, thread, self._stack)
        self._stack.enter_context(without_what_lasts())
        return Machinery(
            generator=engine,
            trainer=self.trainer,
            critic=self.trainer if settings.algorithm.kind.critic else None,
            weights=self.trainer,
            fits=lambda prompt: bool(engine.encoder.fit([prompt]).kept),
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
    return fitting_prompts(prompt_set, make_measuring_engine(settings, policy, DeviceThread("rehearsal")).encoder)


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


def make_engine(
    settings: RunSettings,
    policy: Policy,
    thread: DeviceThread,
    *,
    weights: Callable[[], NamedTensors] | None = None,
    is_fed: bool = False,
) -> Engine:
    """Makes the run's engine, for training and validation; starts nothing. Options are of `EngineFactory.make`."""
    device, samplings = device_of(settings), samplings_of_run(settings)
    return engine_factory(settings).make(
        settings, policy, thread, device=device, samplings=samplings, weights=weights, is_fed=is_fed
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
    is_trained = backend_of(settings).trains_policy_model  # else the policy's weights are for generating alone
    uses_model, is_shared = engine_factory(settings).uses_policy_model, settings.schedule.placement == "colocated"
    own, own_thread = policy, thread
    if uses_model and not is_shared:
        own_thread = stack.enter_context(DeviceThread("generator"))
        if is_trained:
            own = dataclasses.replace(policy, model=await thread.run(lambda: copy.deepcopy(policy.model)))
    weights = None if uses_model and is_shared and is_trained else trainer.weights
    return await stack.enter_async_context(make_engine(settings, own, own_thread, weights=weights))


async def _open_trainer(
    settings: RunSettings, policy: Policy, thread: DeviceThread, stack: contextlib.AsyncExitStack
) -> DeviceTrainer:
    opened = contextlib.ExitStack()
    stack.push_async_callback(thread.run, opened.close)
    device = device_of(settings)
    trainer = backend_of(settings).open_alone(settings, policy, thread, device)
    return await thread.run(lambda: opened.enter_context(trainer))
