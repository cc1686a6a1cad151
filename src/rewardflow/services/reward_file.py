"""Loads a reward from YAML: which service, its settings, and the agent's limits, without code.

Always true: the agent accepts a `RewardFile` as it is. The error about an unknown key suggests the nearest known one,
the error about a wrong value names the rule. Relative paths start at the file's folder. A service is imported only when
a file names it, so users need only the packages of the services they use.

    reward: llm_judge
    model: gpt-5-mini
    base_urls: [https://api.openai.com/v1]
    api_key_env: OPENAI_API_KEY
    prices: {input_usd_per_million: 0.25, output_usd_per_million: 2.0}
    limits: {max_concurrency: 128, max_cost_usd: 20}

or, for a weighted sum, `rewards:` with a list of such mappings, each with `weight`, `name`, `account` and `limits`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from rewardflow.errors import InvalidInput, RewardLoadError
from rewardflow.reward.code.late_answers import LateAnswers
from rewardflow.reward.code.source import RewardSource
from rewardflow.reward.component import Weighted, as_parts
from rewardflow.reward.settings import LIMIT_NAMES, LimitSettings, check_names, split_options
from rewardflow.services.batches.settings import check_timeouts
from rewardflow.settings.reward_kinds import KINDS
from rewardflow.settings.reward_shape import placed_code
from rewardflow.settings.rules import did_you_mean
from rewardflow.settings.strict_yaml import read_yaml
from rewardflow.settings.typed_values import ValueFitter, at, shown
from rewardflow.types import EMPTY

_PART_KEYS = ("reward", "weight", "name", "account", "limits")
_PATH_OPTIONS = ("journal", "run_dir")


@dataclass(frozen=True, slots=True)
class RewardFile:
    """The contents of a file, ready for `RewardAgent(file.parts, **file.options)`."""

    parts: tuple[Weighted, ...]
    options: dict[str, Any] = field(default_factory=dict)


def load_reward_file(path: str | PathLike[str], *, kinds: Mapping[str, str] = KINDS) -> RewardFile:
    """Reads a file and builds its rewards. `kinds` maps each kind to its class (`package.module:Name`)."""
    path = Path(path)
    with at(str(path)):
        return _Loader(path.absolute().parent, kinds).load(read_yaml(path))


def load_reward_contents(
    contents: Mapping[str, Any], *, folder: str | PathLike[str], kinds: Mapping[str, str] = KINDS
) -> RewardFile:
    """Builds rewards from the contents of a reward file; relative paths start at the folder."""
    return _Loader(Path(folder).absolute(), kinds).load(contents)


class _Loader:
    def __init__(self, folder: Path, kinds: Mapping[str, str]) -> None:
        self._folder = folder
        self._kinds = kinds
        self._fitter = ValueFitter(folder, self._nested)

    def load(self, document: Any) -> RewardFile:
        if not isinstance(document, Mapping) or ("reward" in document) == ("rewards" in document):
            raise InvalidInput(
                f"the file must be a mapping with either `reward` or `rewards`, got {shown('', document)}"
            )
        document = {key: value for key, value in document.items() if key != "serve"}  # for `rewardflow serve` alone
        options = self._options(document.get("limits"))
        if "reward" in document:
            parts = [self._part({key: value for key, value in document.items() if key != "limits"})]
        else:
            check_names(document, ("rewards", "limits"))
            parts = self._list(document["rewards"])
        for part in parts:
            _check_late_answers(part, options)
        return RewardFile(tuple(as_parts(parts, EMPTY)), options)

    def _list(self, entries: Any) -> list[Weighted]:
        if not isinstance(entries, list) or not entries:
            raise InvalidInput(f"rewards must be a list of at least one mapping, got {shown('rewards', entries)}")
        parts = []
        for i, entry in enumerate(entries):
            with at(f"rewards[{i}]"):
                if not isinstance(entry, Mapping) or "reward" not in entry:
                    raise InvalidInput(f"a reward must be a mapping with `reward`, got {shown('', entry)}")
                parts.append(self._part(entry))
        return parts

    def _part(self, entry: Mapping[str, Any]) -> Weighted:
        kind = self._fitter.fit("reward", entry["reward"], str)
        settings = {key: value for key, value in entry.items() if key not in _PART_KEYS}
        common = {
            "weight": self._fitter.fit("weight", entry.get("weight", 1.0), float),
            "name": self._fitter.fit("name", entry.get("name"), str | None),
            "account": self._fitter.fit("account", entry.get("account"), str | None),
            "limits": _limits(entry.get("limits")),
        }
        if kind in self._kinds:
            return Weighted(self._build(kind, settings), **{**common, "name": common["name"] or kind})
        return Weighted(self._spec(kind), reward_kwargs=settings, **common)

    def _build(self, kind: str, settings: Mapping[str, Any]) -> Any:
        module, _, name = self._kinds[kind].partition(":")
        try:
            service = getattr(importlib.import_module(module), name)
        except ImportError as error:
            raise RewardLoadError(f"{kind} cannot be imported: {error}") from error
        with at(kind):
            return self._fitter.build(service, settings, beside=_PART_KEYS)

    def _spec(self, kind: str) -> str:
        """Resolves the file of `file.py:name` against this file's folder; accepts `package.module:name` as it is."""
        if not kind.endswith(".py") and not kind.rpartition(":")[0]:
            hint = did_you_mean(kind, self._kinds, otherwise=f"known: {', '.join(self._kinds)}")
            raise InvalidInput(f"reward must be a known kind or named 'file.py:name', got {kind!r}; {hint}")
        return placed_code(kind, self._folder)

    def _nested(self, entry: Mapping[str, Any] | str) -> Any:
        """Builds a reward inside the settings of another; a name of user code stays a name."""
        if isinstance(entry, str):
            return self._build(entry, {}) if entry in self._kinds else self._spec(entry)
        kind, settings = entry["reward"], {key: value for key, value in entry.items() if key != "reward"}
        if kind in self._kinds:
            return self._build(kind, settings)
        found = RewardSource.of(self._spec(kind), settings).find()
        return functools.partial(found.target, **found.call_kwargs) if found.call_kwargs else found.target

    def _options(self, limits: Any) -> dict[str, Any]:
        """Returns the agent's options, checked by the agent's own records."""
        options = _mapping("limits", limits)
        for name in _PATH_OPTIONS:
            if isinstance(options.get(name), str):
                options[name] = self._fitter.path(options[name])
        with at("limits"):
            split_options(options)
        return options


def _limits(limits: Any) -> Any:
    """Returns the limits of one reward among several; None if it sets none."""
    own = _mapping("limits", limits)
    with at("limits"):
        check_names(own, LIMIT_NAMES)
        LimitSettings(**own)
    return own or None


def _check_late_answers(part: Weighted, options: Mapping[str, Any]) -> None:
    """Refuses timeouts that are too short for a reward whose answers come in batches."""
    if isinstance(getattr(part.reward, "late_answers", None), LateAnswers):
        with at("limits"):
            check_timeouts({**options, **(part.limits or {})})


def _mapping(name: str, value: Any) -> dict[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise InvalidInput(f"{name} must be a mapping, got {shown(name, value)}")
    odd = [key for key in value or () if not isinstance(key, str)]
    if odd:
        raise InvalidInput(f"{name} must have names as keys, got {odd[0]!r}")
    return dict(value or {})
