"""Plans the memory of one device: the phases of a step against what the device has, and what to change if it is short.

Always true: nothing is loaded and no device is needed; a phase was seen in a rehearsal of the trainer itself, or is
marked as calculated. What an allocator adds by fragments, kernels' workspace and the library's own context, about 1 to
2 GiB on a GPU, come on top.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rewardflow.generate.engines import engine_factory
from rewardflow.runtime.memory_estimate import MemoryEstimate, estimate_memory, estimate_rank_memory
from rewardflow.settings.device_defaults import PASS_TOKENS_KEY, DeviceKind, for_device, left_to_device
from rewardflow.settings.run_settings import RunSettings
from rewardflow.train.backends import backend_of
from rewardflow.train.memory_phase import MemoryPhase
from rewardflow.train.pass_size import PER_PASS, fewer_tokens

if TYPE_CHECKING:
    from rewardflow.policy.load_policy import Policy

logger = logging.getLogger(__name__)

_GIB = 2**30
_BETWEEN_STEPS = ("publish", "save", "generate")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The phases of one rank, in order, and what could be changed where they do not fit."""

    device_bytes: int
    num_ranks: int
    num_parameters: int
    num_trained: int
    phases: tuple[MemoryPhase, ...]
    advice: tuple[str, ...] = ()
    chosen: Mapping[str, Any] = field(default_factory=dict)  # what the settings leave to the device

    @property
    def largest(self) -> MemoryPhase:
        return max(self.phases, key=lambda phase: phase.num_bytes)

    @property
    def fits(self) -> bool:
        return self.largest.num_bytes <= self.device_bytes

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
    return replace(plan, chosen=left_to_device(settings, completed))


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

    estimate = _estimate(settings, outline_policy(settings.policy))
    return planned(settings, estimate, backend_of(settings).rehearse_memory(settings), device_bytes)


def planned(
    settings: RunSettings, estimate: MemoryEstimate, measured: tuple[MemoryPhase, ...], device_bytes: int
) -> MemoryPlan:
    """Completes what a rehearsal measured by what is calculated."""
    phases = tuple(_offloaded(settings, phase) for phase in measured or (_calculated_update(estimate),))
    plan = MemoryPlan(
        device_bytes=device_bytes,
        num_ranks=settings.runtime.ranks,
        num_parameters=estimate.num_parameters,
        num_trained=estimate.num_trained,
        phases=tuple(_with_engine(settings, estimate, phases, device_bytes)),
    )
    return plan if plan.fits else replace(plan, advice=tuple(_advice(settings, plan)))


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
    if phase.name in _BETWEEN_STEPS:
        return phase.changed(without=("optimizer", "reference", "critic"))
    return phase.changed(without=("reference",))


def _with_engine(
    settings: RunSettings, estimate: MemoryEstimate, phases: tuple[MemoryPhase, ...], device_bytes: int
) -> Iterator[MemoryPhase]:
    """Adds what generation takes on the same device, and a phase in which it generates."""
    if settings.schedule.placement != "colocated":
        yield from phases
        return
    factory = engine_factory(settings)
    reserved = int((factory.reserved_share(settings) or 0.0) * device_bytes)
    lasting = {"weights": estimate.weights, "optimizer": estimate.optimizer}
    lasting |= {"reference": estimate.reference, "critic": estimate.critic}
    generate = _offloaded(settings, MemoryPhase(name="generate", by_kind=lasting, is_calculated=True))
    if factory.uses_policy_model:
        copy = estimate.generator_copy
        yield from (phase.changed(engine=copy) for phase in phases)
        yield generate.changed(engine=copy, key_values=estimate.key_values)
    else:
        stays = 0 if factory.sleeps(settings) else reserved
        yield from (phase.changed(engine=stays) for phase in phases)
        yield generate.changed(engine=reserved)


# -- what to change --


def _advice(settings: RunSettings, plan: MemoryPlan) -> Iterator[str]:
    """Says what is short, then each change that would help, with what it would give."""
    phase = plan.largest
    short = phase.num_bytes - plan.device_bytes
    yield f"{phase.name} needs {_gib(phase.num_bytes)} of {_gib(plan.device_bytes)}: {_gib(short)} are short"
    kinds = phase.by_kind
    per_pass = sum(kinds.get(kind, 0) for kind in PER_PASS)
    if settings.trainer.autocast in (None, "float32"):
        yield f"trainer.autocast: bfloat16 halves activations, now {_gib(per_pass)}"
    if not settings.policy.gradient_checkpointing and kinds.get("activations"):
        yield "policy.gradient_checkpointing: true keeps the input of each layer instead of all activations"
    elif per_pass > short:
        tokens = settings.trainer.pass_tokens
        yield f"trainer.micro_batch_tokens below {int(tokens * (1 - short / per_pass)):,}, now {tokens:,}"
    if not settings.trainer.offload:
        freed = sum(kinds.get(kind, 0) for kind in ("reference",))
        if phase.name in _BETWEEN_STEPS:
            freed += kinds.get("optimizer", 0) + kinds.get("critic", 0)
        if freed:
            yield f"trainer.offload: true takes {_gib(freed)} off the device in this phase"
    if kinds.get("engine") and phase.name != "generate":
        held = _gib(kinds["engine"])
        yield f"the engine holds {held}: vllm.sleep, a smaller vllm.memory_share, or schedule.placement: separate"
    spread = sum(kinds.get(kind, 0) for kind in ("weights", "gradients", "optimizer", "reference", "critic"))
    if settings.runtime.kind == "ray" and spread > short:
        ranks = -(-plan.num_ranks * spread // (spread - short))
        yield f"runtime.ranks: {ranks} in place of {plan.num_ranks}, which spreads {_gib(spread)} further"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:,.1f} GiB"
