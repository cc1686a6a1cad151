"""Loads a plan's settings from measurements, then a file, then `key=value` overrides from the command line.

Always true: a later source wins over an earlier one, key by key. The error about an unknown key suggests the nearest
known one; the error about a value of the wrong type names its key and the rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from rewardflow.plan.measured import measured_settings
from rewardflow.plan.settings import PlanSettings
from rewardflow.reward.latency import journal_quantiles
from rewardflow.settings.loading import Override, parse_override, read_mapping
from rewardflow.settings.typed_values import ValueFitter, at

_SECTIONS = ("device", "service", "limits")
_JOURNAL = "journal:"


def load_plan(
    path: str | PathLike[str] | None = None,
    overrides: Sequence[str] = (),
    *,
    measured: str | PathLike[str] | None = None,
) -> PlanSettings:
    """Loads a file and overrides such as `service.slots=512`. `measured` is a run directory or a journal."""
    values: dict[str, Any] = {}
    if measured is not None:
        values = _merged(values, measured_settings(Path(measured)))
    if path is not None:
        values = _merged(values, read_mapping(Path(path), what="a plan file"))
    for text in overrides:
        values = _merged(values, _nested(parse_override(text)))
    where = "the plan" if path is None else str(path)
    with at(where):
        return _built(values)


def _built(values: Mapping[str, Any]) -> PlanSettings:
    service = values.get("service")
    if isinstance(service, Mapping) and str(service.get("latency")).startswith(_JOURNAL):
        # Reads the journal once, here, because each simulation runs in its own process.
        quantiles = journal_quantiles(str(service["latency"]).removeprefix(_JOURNAL))
        values = {**values, "service": {**service, "latency": quantiles}}
    built: PlanSettings = ValueFitter(Path.cwd()).build(PlanSettings, values)
    return built


def _nested(override: Override) -> dict[str, Any]:
    value = override.value
    for name in reversed(override.names):
        value = {name: value}
    nested: dict[str, Any] = value
    return nested


def _merged(values: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Merges sections key by key, and replaces every other value as a whole."""
    merged = dict(values)
    for name, value in more.items():
        before = merged.get(name)
        is_section = name in _SECTIONS and isinstance(before, Mapping) and isinstance(value, Mapping)
        merged[name] = {**before, **value} if is_section and isinstance(before, Mapping) else value
    return merged
