"""Plans the memory of one device: the phases of a step against what the device has, and what to change if it is short.

Always true: nothing is loaded and no device is needed; a phase was seen in a rehearsal of the trainer itself, or is
marked as calculated. A plan fits only if every phase does, and if the engine can start with what it reserves. What an
allocator adds by fragments, kernels' workspace and the library's own context, about 1 to 2 GiB on a GPU, come on top.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rewardflow.generate.engine_memory import EngineMemory
from rewardflow.generate.engines import engine_factory
from rewardflow.runtime.memory_advice import BETWEEN_STEPS, advice
from rewardflow.runtime.memory_estimate import MemoryEstimate, estimate_memory, estimate_rank_memory
from rewardflow.settings.device_defaults import PASS_TOKENS_KEY, DeviceKind, for_device, left_to_device
from rewardflow.settings.run_settings import RunSettings
from rewardflow.train.backends import backend_of
from rewardflow.train.memory_phase import MemoryPhase
from rewardflow.train.pass_size import fewer_tokens

if TYPE_CHECKING:
    from rewardflow.policy.load_policy import Policy

logger = logging.getLogger(__name__)

# Attention that a rehearsal computes itself; others need a package or a GPU.
_REHEARSED_ATTENTION = (None, "eager", "sdpa", "flex_attention")
_PLANNED_ATTENTION = "sdpa"  # which keeps for the backward pass what flash attention keeps


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The phases of one rank, in order, and what could be changed where they do not fit."""

    device_bytes: int
    num_ranks: int
    num_parameters: int
    num_trained: int
    phases: tuple[MemoryPhase, ...]
    engine: EngineMemory | None = None  # if it has weights of its own; its devices have as much memory
    notes: tuple[str, ...] = ()  # in what the plan differs from the run
    advice: tuple[str, ...] = ()
    chosen: Mapping[str, Any] = field(default_factory=dict)  # what the settings leave to the device

    @property
    def largest(self) -> MemoryPhase:
        return max(self.phases, key=lambda phase: phase.num_bytes)

    @property
    def short_phases(self) -> tuple[MemoryPhase, ...]:
        """The phases that do not fit, the largest first."""
        short = [phase for phase in self.phases if phase.num_bytes > self.device_bytes]
        return tuple(sorted(short, key=lambda phase: -phase.num_bytes))

    @property
    def fits(self) -> bool:
        return not self.short_phases and (self.engine is None or not self.engine.short)

    @property
    def is_measured(self) -> bool:
        """Whether passes were seen in a rehearsal."""
        return any(not phase.is_calculated for phase in self.phases)

    def to_json(self) -> dict[str, Any]:
        return {
            "device_bytes": self.device_bytes,
            "ranks": self.num_ranks,
            "parameters": self.num_parameters,
            "trained": self.num_trained,
            "fits": self.fits,
            "phases": [
                {"name": one.name, "bytes": one.num_bytes, "kinds": dict(one.by_kind), "calculated": one.is_calculated}
                for one in self.phases
            ],
            "engine": None if self.engine is None else asdict(self.engine),
            "notes": list(self.notes),
            "advice": list(self.advice),
            "device_defaults": dict(self.chosen),
        }


def plan_memory(settings: RunSettings, device_bytes: int) -> MemoryPlan:
    """Needs the model's configuration and tokenizer, not its weights. The device is an accelerator, unless given.

    Where the settings leave the size of a pass to the device, the plan has the largest that fits.
    """
    kind: DeviceKind = "cpu" if settings.trainer.device == "cpu" else "accelerator"
    completed = for_device(settings, kind)
    plan = _rehearsed(completed, device_bytes)
    if kind == "cpu":
        return plan
    if settings.trainer.micro_batch_tokens is None:
        while (tokens := fewer_tokens(completed, plan.phases, device_bytes)) is not None:
            completed = _with_pass(completed, tokens)
            plan = _rehearsed(completed, device_bytes)
    return replace(plan, chosen=left_to_device(settings, completed, kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedSettings:
    """Settings with a value for everything that they left to the device."""

    settings: RunSettings
    fitted_to_bytes: int | None = None  # the memory to which the size of a pass was fitted; None: it was not


def complete_for(settings: RunSettings, kind: DeviceKind, device_bytes: int | None) -> CompletedSettings:
    """Completes settings for a device with this memory, if it is known. A run and `--check` get their values here.

    This may take a minute, for a plan of the memory. A model that cannot be planned keeps the size of a pass that it
    has where the memory is unknown.
    """
    usual = CompletedSettings(settings=for_device(settings, kind))
    if kind == "cpu" or device_bytes is None or settings.trainer.micro_batch_tokens is not None:
        return usual
    try:
        plan = plan_memory(settings, device_bytes)
    except Exception as error:  # a model that a rehearsal cannot run may still train
        logger.warning("the memory of a pass could not be planned, micro_batch_tokens keeps its default: %r", error)
        return usual
    if not plan.is_measured:
        return usual
    fitted = _with_pass(settings, plan.chosen[PASS_TOKENS_KEY])
    return CompletedSettings(settings=for_device(fitted, kind), fitted_to_bytes=device_bytes)


def _with_pass(settings: RunSettings, tokens: int) -> RunSettings:
    return replace(settings, trainer=replace(settings.trainer, micro_batch_tokens=tokens))


def _rehearsed(settings: RunSettings, device_bytes: int) -> MemoryPlan:
    from rewardflow.policy.load_policy import outline_policy

    runnable = _with_attention(settings)
    policy = outline_policy(runnable.policy)
    measured = backend_of(settings).rehearse_memory(runnable)
    engine = engine_factory(settings).memory(settings, policy, device_bytes)
    plan = planned(settings, _estimate(settings, policy), measured, device_bytes, engine=engine)
    return replace(plan, notes=tuple(_notes(settings, runnable, plan)))


def _with_attention(settings: RunSettings) -> RunSettings:
    """Replaces attention that only a GPU computes by one that has the same memory and needs no package."""
    if settings.policy.attention in _REHEARSED_ATTENTION:
        return settings
    return replace(settings, policy=replace(settings.policy, attention=_PLANNED_ATTENTION))


def _notes(settings: RunSettings, runnable: RunSettings, plan: MemoryPlan) -> Iterator[str]:
    if not plan.is_measured:
        yield "activations are not in this plan: the back end does not run without data"
    elif runnable != settings:
        mask = ", with a mask that it does not need" if settings.trainer.padding_free else ""
        yield f"policy.attention {settings.policy.attention} is planned as {runnable.policy.attention}{mask}"


def planned(
    settings: RunSettings,
    estimate: MemoryEstimate,
    measured: tuple[MemoryPhase, ...],
    device_bytes: int,
    *,
    engine: EngineMemory | None,
) -> MemoryPlan:
    """Completes what a rehearsal measured by what is calculated. `engine` is that of `EngineFactory.memory`."""
    phases = tuple(_offloaded(settings, phase) for phase in measured or (_calculated_update(estimate),))
    plan = MemoryPlan(
        device_bytes=device_bytes,
        num_ranks=settings.runtime.ranks,
        num_parameters=estimate.num_parameters,
        num_trained=estimate.num_trained,
        phases=tuple(_with_engine(settings, estimate, phases, engine)),
        engine=engine,
    )
    return plan if plan.fits else replace(plan, advice=tuple(advice(settings, plan)))


def _estimate(settings: RunSettings, policy: Policy) -> MemoryEstimate:
    import torch

    if settings.runtime.kind == "ray":
        return estimate_rank_memory(settings, policy)
    return estimate_memory(settings, policy, torch.device("cpu"))


def _calculated_update(estimate: MemoryEstimate) -> MemoryPhase:
    """Counts what can be counted without running; activations come on top."""
    kinds = ("weights", "gradients", "optimizer", "reference", "logits")
    sizes = {kind: getattr(estimate, kind) for kind in kinds}
    sizes["critic"] = estimate.critic + estimate.critic_gradients
    return MemoryPhase(name="update", by_kind={kind: size for kind, size in sizes.items() if size}, is_calculated=True)


def _offloaded(settings: RunSettings, phase: MemoryPhase) -> MemoryPhase:
    """With `trainer.offload`, leaves out what is not on the device in this phase."""
    if not settings.trainer.offload or phase.name in ("load", "reference"):
        return phase
    if phase.name in BETWEEN_STEPS:
        return phase.changed(without=("optimizer", "reference", "critic"))
    return phase.changed(without=("reference",))


def _beside_copy(
    settings: RunSettings, estimate: MemoryEstimate, engine: EngineMemory | None, phase: MemoryPhase
) -> MemoryPhase:
    """Adds a copy of the model that generates on the trainer's device, at any time but in publishing."""
    if settings.runtime.kind != "embedded" or engine is not None or phase.name == "load":
        return phase
    key_values = 0 if phase.name == "publish" else estimate.key_values
    return phase.changed(engine=estimate.generator_copy, key_values=key_values)


def _with_engine(
    settings: RunSettings, estimate: MemoryEstimate, phases: tuple[MemoryPhase, ...], engine: EngineMemory | None
) -> Iterator[MemoryPhase]:
    """Adds what generation takes on the same device, and a phase in which it generates."""
    if settings.schedule.placement != "colocated":
        yield from (_beside_copy(settings, estimate, engine, phase) for phase in phases)
        return
    lasting = {"weights": estimate.weights, "optimizer": estimate.optimizer}
    lasting |= {"reference": estimate.reference, "critic": estimate.critic}
    lasting["gradients"] = estimate.gradients if backend_of(settings).keeps_gradients else 0
    by_kind = {kind: size for kind, size in lasting.items() if size}
    generate = _offloaded(settings, MemoryPhase(name="generate", by_kind=by_kind, is_calculated=True))
    for phase in phases:
        if engine is None:
            yield phase.changed(engine=estimate.generator_copy)
        elif phase.name == "publish":
            yield phase.changed(engine=engine.in_publish, buffers=engine.buffers)
        else:
            yield phase.changed(engine=engine.in_update)
    if engine is None:
        yield generate.changed(engine=estimate.generator_copy, key_values=estimate.key_values)
    else:
        yield generate.changed(engine=engine.reserved)
