"""Says how many tokens a pass may hold, so that the phases of a step fit the memory of a device.

Always true: a pass holds the longest rollout, even if that does not fit; a smaller pass is proposed only where it takes
less memory; room is left for what no plan counts.
"""

from __future__ import annotations

from collections.abc import Iterable

from rewardflow.settings.device_defaults import longest_row
from rewardflow.settings.run_settings import RunSettings
from rewardflow.train.memory_phase import MemoryPhase

PER_PASS = ("activations", "logits")  # the kinds that grow with the tokens of a pass
OF_PASSES = ("log-probs", "reference", "values", "update")  # the phases that make passes

_UNCOUNTED_BYTES = 2 * 2**30  # the allocator's fragments, kernels' workspace and the libraries' own context
_UNCOUNTED_SHARE = 0.125  # at most, of a small device
_ROUNDED_TO = 256


def room_for_phases(device_bytes: int) -> int:
    """Returns what a device has for the phases of a plan."""
    return device_bytes - min(_UNCOUNTED_BYTES, int(device_bytes * _UNCOUNTED_SHARE))


def fewer_tokens(settings: RunSettings, phases: Iterable[MemoryPhase], device_bytes: int) -> int | None:
    """Returns the size of a pass to try next; None if the phases fit, or if a smaller pass does not help.

    The phases are of passes with as many rows of the longest rollout as `micro_batch_tokens` holds.
    """
    longest = longest_row(settings)
    tokens = max(settings.trainer.pass_tokens // longest, 1) * longest
    room = room_for_phases(device_bytes)
    most = tokens
    for phase in phases:
        if phase.is_calculated or phase.name not in OF_PASSES:
            continue  # it has no activations, or none that a smaller pass would lessen
        short = phase.num_bytes - room
        per_pass = sum(phase.by_kind.get(kind, 0) for kind in PER_PASS)
        if short > 0 and per_pass > 0:
            most = min(most, int(tokens * max(0.0, 1 - short / per_pass)))
    if most == tokens or tokens == longest:
        return None
    return max(longest, most // _ROUNDED_TO * _ROUNDED_TO)
