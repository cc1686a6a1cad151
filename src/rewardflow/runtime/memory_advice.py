"""Says what to change where a plan of a device's memory does not fit.

Always true: everything that is short is named, the largest phase first, and followed by each change that would help it,
with what the change would give; the same change is said once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from rewardflow.generate.engine_memory import EngineMemory
from rewardflow.settings.device_defaults import longest_row
from rewardflow.settings.run_settings import RunSettings
from rewardflow.train.backends import backend_of
from rewardflow.train.memory_phase import MemoryPhase
from rewardflow.train.pass_size import OF_PASSES, PER_PASS

if TYPE_CHECKING:
    from rewardflow.runtime.memory_plan import MemoryPlan

BETWEEN_STEPS = ("publish", "save", "generate")  # phases in which `trainer.offload` has moved the optimizer, too

_GIB = 2**30
_SPREAD = ("weights", "gradients", "optimizer", "reference", "critic")  # the kinds that more ranks share


def advice(settings: RunSettings, plan: MemoryPlan) -> Iterator[str]:
    """Yields lines; those about a phase begin with what it lacks."""
    told: set[str] = set()
    for line in _all_lines(settings, plan):
        if line not in told:
            told.add(line)
            yield line


def _all_lines(settings: RunSettings, plan: MemoryPlan) -> Iterator[str]:
    for phase in plan.short_phases:
        short = phase.num_bytes - plan.device_bytes
        yield f"{phase.name} needs {_gib(phase.num_bytes)} of {_gib(plan.device_bytes)}: {_gib(short)} are short"
        yield from _for_passes(settings, phase, short)
        yield from _for_state(settings, phase)
        yield from _for_generation(settings, plan, phase)
        yield from _for_ranks(settings, phase, short)
    if plan.engine is not None and plan.engine.short:
        yield from _for_engine(settings, plan.engine, plan.device_bytes)


def _for_passes(settings: RunSettings, phase: MemoryPhase, short: int) -> Iterator[str]:
    if phase.name not in OF_PASSES:
        return
    per_pass = _sum(phase.by_kind, PER_PASS)
    if per_pass and settings.trainer.autocast in (None, "float32"):
        yield f"trainer.autocast: bfloat16 halves activations, now {_gib(per_pass)}"
    if not settings.policy.gradient_checkpointing and phase.by_kind.get("activations"):
        yield "policy.gradient_checkpointing: true keeps the input of each layer instead of all activations"
    elif per_pass > short:
        tokens, longest = settings.trainer.pass_tokens, longest_row(settings)
        held = max(tokens // longest, 1) * longest  # what the phase was planned with
        most = int(held * (1 - short / per_pass))
        if most >= longest:
            yield f"trainer.micro_batch_tokens below {most:,}, now {tokens:,}"
        else:  # a pass holds a rollout of the longest kind, however small it is said to be
            yield (
                f"generation.max_prompt_tokens and max_response_tokens of at most {most:,} together, now {longest:,}, "
                "with trainer.micro_batch_tokens no larger"
            )


def _for_state(settings: RunSettings, phase: MemoryPhase) -> Iterator[str]:
    moved = ("reference", "optimizer", "critic") if phase.name in BETWEEN_STEPS else ("reference",)
    freed = _sum(phase.by_kind, moved)
    if freed and not settings.trainer.offload:
        yield f"trainer.offload: true takes {_gib(freed)} off the device in this phase"


def _for_generation(settings: RunSettings, plan: MemoryPlan, phase: MemoryPhase) -> Iterator[str]:
    held, engine = phase.by_kind.get("engine", 0), plan.engine
    short = phase.num_bytes - plan.device_bytes
    rows, num_rows = phase.by_kind.get("key_values", 0), settings.generation.max_sequences
    if rows > short:
        yield f"generation.max_sequences below {int(num_rows * (1 - short / rows)):,}, now {num_rows:,}"
    if engine is not None and held == engine.reserved:
        if phase.name != "generate":
            yield f"vllm.sleep: true takes {_gib(held - _asleep(phase, engine))} off the device in this phase"
        share = math.floor(100 * (held - short) / plan.device_bytes) / 100
        if settings.vllm.kv_cache_gb is None and share * plan.device_bytes >= engine.needed:
            yield f"vllm.memory_share: {share:g} or less, now {held / plan.device_bytes:.2g}"
    if not held + rows:
        return
    if settings.schedule.placement == "separate":
        yield f"schedule.placement: colocated takes {_gib(held + rows)} for generation off the device in this phase"
    elif settings.runtime.kind == "ray" or engine is not None:  # one process has this device alone
        yield f"schedule.placement: separate takes {_gib(held + rows)} for generation off the device"


def _asleep(phase: MemoryPhase, engine: EngineMemory) -> int:
    return engine.weights if phase.name == "publish" else 0


def _for_ranks(settings: RunSettings, phase: MemoryPhase, short: int) -> Iterator[str]:
    spread = _sum(phase.by_kind, _SPREAD)
    if settings.runtime.kind != "ray" or spread <= short:
        return
    if made_of := backend_of(settings).describe_ranks(settings):
        yield f"more ranks for one model, now {made_of}"
    else:
        ranks = settings.runtime.ranks
        more = -(-ranks * spread // (spread - short))
        yield f"runtime.ranks: {more} in place of {ranks}, which spreads {_gib(spread)} further"


def _for_engine(settings: RunSettings, engine: EngineMemory, device_bytes: int) -> Iterator[str]:
    """Says what lacks in the memory that an engine reserves, which no phase shows."""
    yield (
        f"the engine reserves {_gib(engine.reserved)} of {_gib(device_bytes)} and needs {_gib(engine.weights)} for "
        f"weights and at least {_gib(engine.key_values)} for keys and values: {_gib(engine.short)} are short"
    )
    share = math.ceil(100 * engine.needed / device_bytes) / 100
    if settings.vllm.kv_cache_gb is not None:
        yield f"vllm.kv_cache_gb: {math.ceil(engine.key_values / 10**8) / 10:g} or more"
    elif share <= 1:
        yield f"vllm.memory_share: more than {share:g}, now {engine.reserved / device_bytes:.2g}"
    if settings.schedule.placement == "colocated":
        yield "schedule.placement: separate, which gives the engine devices of its own"
    else:
        yield f"vllm.tensor_parallel: more than {settings.vllm.tensor_parallel}, which spreads the engine's weights"


def _sum(by_kind: Mapping[str, int], kinds: Iterable[str]) -> int:
    return sum(by_kind.get(kind, 0) for kind in kinds)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:,.1f} GiB"
