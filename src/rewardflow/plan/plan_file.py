"""Reads a plan's settings: what was measured, then a file, then `key=value` from the command line.

Always true: what comes later goes before what came earlier, key by key; an unknown key is an error that names the
nearest; a value of the wrong type is named with its key and its rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

from rewardflow.errors import InvalidInput
from rewardflow.plan.measured import measured_settings
from rewardflow.plan.settings import PlanSettings
from rewardflow.reward.latency import journal_quantiles
from rewardflow.settings.strict_yaml import parse_yaml, read_yaml
from rewardflow.settings.typed_values import Fitting, at, shown

_SECTIONS = ("device", "service", "limits")
_JOURNAL = "journal:"


def load_plan(
    path: str | PathLike[str] | None = None,
    overrides: Sequence[str] = (),
    *,
    measured: str | PathLike[str] | None = None,
) -> PlanSettings:
    """From a file and from overrides such as `service.slots=512`; `measured` is a run directory or a journal."""
    values: dict[str, Any] = {}
    if measured is not None:
        values = _merged(values, measured_settings(Path(measured)))
    if path is not None:
        with at(str(path)):
            values = _merged(values, _document(Path(path)))
    for override in overrides:
        values = _merged(values, _nested(override))
    where = "the plan" if path is None else str(path)
    with at(where):
        return _built(values)


def _built(values: Mapping[str, Any]) -> PlanSettings:
    service = values.get("service")
    if isinstance(service, Mapping) and str(service.get("latency")).startswith(_JOURNAL):
        # Read once, here: simulations run in processes of their own.
        quantiles = journal_quantiles(str(service["latency"]).removeprefix(_JOURNAL))
        values = {**values, "service": {**service, "latency": quantiles}}
    built: PlanSettings = Fitting(Path.cwd(), _no_reward).build(PlanSettings, values)
    return built


def _document(path: Path) -> Mapping[str, Any]:
    document = read_yaml(path)
    if not isinstance(document, Mapping):
        raise InvalidInput(f"a plan file must be a mapping, got {shown('', document)}")
    return document


def _nested(override: str) -> dict[str, Any]:
    name, equals, text = override.partition("=")
    names = name.strip().split(".")
    if not equals or not all(names):
        raise InvalidInput(f"an override must be key=value, got {shown('', override)}")
    value = parse_yaml(text, what=f"the value of the override {name}")
    for inner in reversed(names):
        value = {inner: value}
    nested: dict[str, Any] = value
    return nested


def _merged(values: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Sections key by key, everything else as a whole."""
    merged = dict(values)
    for name, value in more.items():
        before = merged.get(name)
        is_section = name in _SECTIONS and isinstance(before, Mapping) and isinstance(value, Mapping)
        merged[name] = {**before, **value} if is_section and isinstance(before, Mapping) else value
    return merged


def _no_reward(_: Mapping[str, Any] | str) -> NoReturn:
    raise InvalidInput("a reward cannot stand here")
