"""Finds the engine that `generation.engine` names, and says what every engine must offer.

An engine is a folder beside this module, named as in the settings, whose `factory.py` has a `FACTORY`. Its name and the
rules that the settings need are one line in `settings.sections.generation.ENGINES`.

Always true: no other module asks for an engine by name, or for the class of an engine.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from rewardflow.flow.device_thread import DeviceThread
from rewardflow.flow.records import GroupRequest, Sampling
from rewardflow.settings.run_settings import GenerationSettings, RunSettings
from rewardflow.types import Rollout

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from rewardflow.generate.engine_memory import EngineMemory
    from rewardflow.generate.prompt_encoder import PromptEncoder
    from rewardflow.generate.responses import EngineStatistics
    from rewardflow.policy.load_policy import Policy

NamedTensors = Iterable[tuple[str, "Tensor"]]
# Asks every engine actor the same question, each with its own information, and returns when all have answered.
AskEngines = Callable[[str, Sequence[dict[str, Any]]], None]


class Engine(AbstractAsyncContextManager["Engine"], Protocol):
    """A `Generator` of the flow that has weights. Enter it before it generates.

    It pulls the trainer's weights when a version is published, or, where it was made to be fed, others push them
    before: by `receive`, or by a sender that talks to its workers and calls `answer_sender`.
    """

    @property
    def encoder(self) -> PromptEncoder:
        """Turns prompts into tokens, and says which fit. It works before the engine is entered."""

    def generate(self, requests: Sequence[GroupRequest]) -> AsyncGenerator[Rollout]:
        """Yields every rollout of every request as soon as it has ended. Closing it stops the others."""

    async def begin_generating(self) -> None:
        """Takes the device's memory before `generate`, if it gave it back, and keeps it until `end_generating`.

        Engines in several ranks need the weights of all of them to wake, so all are told together.
        """

    async def end_generating(self) -> None:
        """Gives the device's memory back if nobody else generates and the engine is set up to do so."""

    async def publish(self, version: int) -> None:
        """Generates from now on with the trainer's present weights, or with those received, under this version."""

    async def receive(self, weights: Mapping[str, Tensor]) -> None:
        """Takes a part of the next version's weights, by the names that transformers gives them."""

    async def answer_sender(self, call: str, info: dict[str, Any]) -> None:
        """Does what a `DirectSender` of the same engine asks for."""

    def statistics(self) -> EngineStatistics: ...


class DirectSender(Protocol):
    """Sends a rank's weights to the workers of engines in other processes."""

    def send_weights(self) -> None: ...


@dataclass(frozen=True, slots=True)
class EngineActors:
    """The engines in actors of their own, as a rank sees them. `address` is the rank's own, which they can reach."""

    ask_all: AskEngines
    count: int
    address: str


class OpenSender(Protocol):
    def __call__(
        self, settings: RunSettings, weights: Callable[[], NamedTensors], *, rank: int, engines: EngineActors
    ) -> DirectSender:
        """Connects a rank with all engines. Every rank calls it, on its thread; the first waits for all workers."""


@dataclass(frozen=True, slots=True)
class Routing:
    """How requests are spread over engines in several processes.

    An engine has `lanes` calls at a time, with `room` rollouts in all of them together; None: with its whole share.
    Engines that decode what they are given as one batch have one lane.
    """

    lanes: int = 1
    room: int | None = None


class EngineFactory(Protocol):
    """Makes engines of one kind, and says what the runtime must know about them."""

    @property
    def uses_policy_model(self) -> bool:
        """Whether the engine computes with `policy.model`.

        Otherwise it holds weights of its own, an outline of the policy is enough, and a fed engine has no weights
        before the first version.
        """

    def make(
        self,
        settings: RunSettings,
        policy: Policy,
        thread: DeviceThread,
        *,
        device: torch.device,
        samplings: Sequence[Sampling],
        weights: Callable[[], NamedTensors] | None = None,
        is_fed: bool = False,
        engines_here: int = 1,
    ) -> Engine:
        """Refuses settings that do not fit the device and packages that are missing; starts nothing.

        `samplings` are all that requests will have, training's first. `weights` gives the trainer's, by the names of
        the model; the engine calls it on `thread`. Without it `policy.model` is the trainer's own, or the engine
        `is_fed`. `engines_here` are those of the run that share this machine's memory, this one among them.
        """

    def routing(self, settings: GenerationSettings) -> Routing: ...

    def devices_per_engine(self, settings: RunSettings) -> int: ...

    def memory(self, settings: RunSettings, policy: Policy, device_bytes: int) -> EngineMemory | None:
        """Returns what an engine takes on each of its devices; None if it computes with `policy.model`.

        `policy` may be an outline; each device has `device_bytes`.
        """

    def sleeps(self, settings: RunSettings) -> bool:
        """Whether an engine gives its memory back while the trainer computes."""

    def without_devices(self, settings: RunSettings) -> RunSettings:
        """Leaves out settings that need a GPU, to check the others where no GPU is."""

    def direct_sending(self, settings: RunSettings) -> OpenSender | None:
        """Opens a `DirectSender`; None where engines in other processes are given weights by `receive`."""


def engine_factory(settings: RunSettings) -> EngineFactory:
    """Returns the factory of the engine that the settings of a run name."""
    factory: EngineFactory = import_module(f"rewardflow.generate.{settings.generation.engine}.factory").FACTORY
    return factory
