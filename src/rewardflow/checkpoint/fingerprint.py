"""The settings that a checkpoint depends on: a run may resume only with the same ones.

Always true: a setting that changes the numbers of a run by more than rounding is in the fingerprint; one that changes
only its speed, length, place, memory or cost is not. A setting that did not exist when a checkpoint was written had its
default then.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from rewardflow.errors import InvalidInput
from rewardflow.settings.run_keys import field_of, keys, sections
from rewardflow.settings.run_settings import RunSettings

_SECTIONS = ("policy", "data", "generation", "algorithm", "schedule", "trainer", "critic")
# The data's own fingerprint is compared by its cursor, wherever the file lies now.
_FREE = frozenset(
    {
        *("data.path", "trainer.threads", "trainer.device", "trainer.offload", "trainer.backend", "trainer.megatron"),
        # What people lower when a run died of too little memory.
        "trainer.padding_free",
        *("trainer.micro_batch_tokens", "generation.max_sequences", "policy.gradient_checkpointing"),
    }
)

_GONE = "not a setting"


def fingerprint(settings: RunSettings) -> dict[str, Any]:
    """Returns the settings by dotted name, as plain JSON."""
    found: dict[str, Any] = {"seed": settings.seed}
    for section in _SECTIONS:
        found |= _named(section, getattr(settings, section))
    return found


def _named(section: str, record: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        name, value = f"{section}.{field.name}", getattr(record, field.name)
        if name in _FREE:
            continue
        # An optional section is one value: key by key, a missing one would equal one with all defaults.
        is_section = dataclasses.is_dataclass(value) and field.default is not None
        found |= _named(name, value) if is_section else {name: _plain(value)}
    return found


def check_same(then: Mapping[str, Any], now: Mapping[str, Any], *, where: str) -> None:
    """Raises `InvalidInput` that names the settings that differ."""
    changes = []
    for name in {**now, **then}.keys() - _FREE:  # which earlier versions may have written down
        before, today = then.get(name, _default(name)), now.get(name, _GONE)
        if before != today:
            changes.append(f"{name} was {json.dumps(before)} and is {json.dumps(today)}")
    if changes:
        raise InvalidInput(
            f"a run can only go on with the settings it had, but since {where} {'; '.join(sorted(changes))}. "
            "Set them back, or start a new run in another run_dir"
        )


def _default(name: str) -> Any:
    if name in sections():
        return _plain(field_of(name).default)
    key = keys().get(name)
    return _GONE if key is None or key.is_required else _plain(key.default)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    return json.loads(json.dumps(value, default=str))
