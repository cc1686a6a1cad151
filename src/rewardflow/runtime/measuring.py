"""Where an evaluation generates: in this process, or on the processes of a Ray cluster that the run would train on.

Always true: what is measured are the weights of one version, the same in both places, and nothing is trained.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from rewardflow.checkpoint.manifest import Checkpoint
from rewardflow.data.prompt_set import PromptSet
from rewardflow.flow.protocols import Generator
from rewardflow.flow.records import Prompt
from rewardflow.runtime.device_home import DeviceHome
from rewardflow.runtime.local import load, make_measuring_engine, rehearse_validation
from rewardflow.runtime.on_ray.ray_home import OnRay
from rewardflow.settings.run_settings import PolicySettings, RunSettings

if TYPE_CHECKING:
    from rewardflow.policy.load_policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredModel:
    """Which model is measured. `version` steps were trained, where that is known; `name` is fit for a folder's."""

    name: str
    policy: PolicySettings
    version: int = 0
    checkpoint: Checkpoint | None = None
    place: Path | None = None


class MeasuringHome(AbstractAsyncContextManager["MeasuringHome"], Protocol):
    """Entered before anything heavy happens, left last."""

    async def rehearse(self, prompt_set: PromptSet) -> tuple[Prompt, ...]:
        """Find the mistakes that can be found before anything is loaded; the prompts to measure with."""

    async def load(self, model: MeasuredModel) -> Generator:
        """Has the weights of the model, under its version."""


def measuring_home(settings: RunSettings, tell: Callable[[str], None] | None = None) -> MeasuringHome:
    """As the settings say. `tell` is told what the start waits for, where that may take a while."""
    return MeasuringOnRay(settings, tell) if settings.runtime.kind == "ray" else MeasuringHere(settings)


class MeasuringHere(DeviceHome):
    """The engine alone, without a trainer."""

    async def rehearse(self, prompt_set: PromptSet) -> tuple[Prompt, ...]:
        return await self._thread.run(lambda: rehearse_validation(self._settings, _outline(self._settings), prompt_set))

    async def load(self, model: MeasuredModel) -> Generator:
        policy = await self._thread.run(lambda: _load(self._settings, model))
        engine = make_measuring_engine(self._settings, policy, self._thread)
        await self._stack.enter_async_context(engine)
        await engine.publish(model.version)
        return engine


class MeasuringOnRay:
    """The ranks and generators of the run, as if it went on from the checkpoint: what can train it can measure it."""

    def __init__(self, settings: RunSettings, tell: Callable[[str], None] | None) -> None:
        self._home = OnRay(settings, tell=tell)

    async def __aenter__(self) -> Self:
        await self._home.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._home.__aexit__(exc_type, exc, traceback)

    async def rehearse(self, prompt_set: PromptSet) -> tuple[Prompt, ...]:
        return await self._home.rehearse(prompt_set, prompt_set)

    async def load(self, model: MeasuredModel) -> Generator:
        machinery = await self._home.load()
        if model.checkpoint is not None:
            await machinery.weights.put_back(model.checkpoint.path)
            await machinery.generator.publish(model.version)
        return machinery.generator


def _outline(settings: RunSettings) -> Policy:
    from rewardflow.policy.load_policy import outline_policy

    return outline_policy(settings.policy)


def _load(settings: RunSettings, model: MeasuredModel) -> Policy:
    from rewardflow.checkpoint.model_state import read_state
    from rewardflow.checkpoint.snapshot import STATE_FOLDER

    policy = load(settings)
    if model.checkpoint is not None:
        read_state(model.checkpoint.path / STATE_FOLDER, policy.model)
    return policy
