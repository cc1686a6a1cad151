"""A reward described in YAML: which service, its settings, and the agent's limits, without code.

Always true: a `RewardFile` that exists can be given to the agent as it is; an unknown key is refused with the nearest
known one, a wrong value with its rule. Relative paths are relative to the file. Services are imported when a file names
them, so that nobody needs the packages of a service that they do not use.

    reward: llm_judge
    model: gpt-5-mini
    base_urls: [https://api.openai.com/v1]
    api_key_env: OPENAI_API_KEY
    prices: {input_usd_per_million: 0.25, output_usd_per_million: 2.0}
    limits: {max_concurrency: 128, max_cost_usd: 20}

or, for a weighted sum, `rewards:` with a list of such mappings, each with `weight`, `name`, `account` and `limits`.
"""

from __future__ import annotations

import difflib
import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from rewardflow.errors import InvalidInput, RewardLoadError
from rewardflow.reward.code.source import RewardSource
from rewardflow.reward.component import Weighted, as_parts
from rewardflow.reward.settings import LIMIT_NAMES, LimitSettings, check_names, split_options
from rewardflow.settings.reward_kinds import KINDS
from rewardflow.settings.strict_yaml import read_yaml
from rewardflow.settings.typed_values import Fitting, at, shown
from rewardflow.types import EMPTY

_PART_KEYS = ("reward", "weight", "name", "account", "limits")
_PATH_OPTIONS = ("journal", "run_dir")


@dataclass(frozen=True, slots=True)
class RewardFile:
    """What a file says: `RewardAgent(file.parts, **file.options)`."""

    parts: tuple[Weighted, ...]
    options: dict[str, Any] = field(default_factory=dict)


def load_reward_file(path: str | PathLike[str], *, kinds: Mapping[str, str] = KINDS) -> RewardFile:
    """Read a file and build its rewards. `kinds` says which class (`package.module:Name`) each kind stands for."""
    path = Path(path)
    with at(str(path)):
        return _Loader(path.absolute().parent, kinds).load(read_yaml(path))


def load_reward_contents(
    contents: Mapping[str, Any], *, folder: str | PathLike[str], kinds: Mapping[str, str] = KINDS
) -> RewardFile:
    """The same for what would stand in a file; relative paths start at the folder."""
    return _Loader(Path(folder).absolute(), kinds).load(contents)


class _Loader:
    def __init__(self, folder: Path, kinds: Mapping[str, str]) -> None:
        self._kinds = kinds
        self._fitting = Fitting(folder, self._nested)

    def load(self, document: Any) -> RewardFile:
        if not isinstance(document, Mapping) or ("reward" in document) == ("rewards" in document):
            raise InvalidInput(
                f"the file must be a mapping with either `reward` or `rewards`, got {shown('', document)}"
            )
        options = self._options(document.get("limits"))
        if "reward" in document:
            parts = [self._part({key: value for key, value in document.items() if key != "limits"})]
        else:
            check_names(document, ("rewards", "limits"))
            parts = self._list(document["rewards"])
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
        kind = self._fitting.fit("reward", entry["reward"], str)
        settings = {key: value for key, value in entry.items() if key not in _PART_KEYS}
        common = {
            "weight": self._fitting.fit("weight", entry.get("weight", 1.0), float),
            "name": self._fitting.fit("name", entry.get("name"), str | None),
            "account": self._fitting.fit("account", entry.get("account"), str | None),
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
            return self._fitting.build(service, settings, beside=_PART_KEYS)

    def _spec(self, kind: str) -> str:
        """`file.py:name`, with the file found from this file's folder, or `package.module:name`."""
        place, colon, name = (kind, "", "") if kind.endswith(".py") else kind.rpartition(":")
        if not place:
            nearest = difflib.get_close_matches(kind, self._kinds, n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(self._kinds)}"
            raise InvalidInput(f"reward must be a known kind or named 'file.py:name', got {kind!r}; {hint}")
        is_file = place.endswith(".py") or "/" in place
        return f"{self._fitting.path(place)}{colon}{name}" if is_file else kind

    def _nested(self, entry: Mapping[str, Any] | str) -> Any:
        """A reward inside another's settings: as an object, or by its name where that is all there is."""
        if isinstance(entry, str):
            return self._build(entry, {}) if entry in self._kinds else self._spec(entry)
        kind, settings = entry["reward"], {key: value for key, value in entry.items() if key != "reward"}
        if kind in self._kinds:
            return self._build(kind, settings)
        found = RewardSource.of(self._spec(kind), settings).find()
        return functools.partial(found.target, **found.call_kwargs) if found.call_kwargs else found.target

    def _options(self, limits: Any) -> dict[str, Any]:
        """The agent's options, checked by the records that hold them."""
        options = _mapping("limits", limits)
        for name in _PATH_OPTIONS:
            if isinstance(options.get(name), str):
                options[name] = self._fitting.path(options[name])
        with at("limits"):
            split_options(options)
        return options


def _limits(limits: Any) -> Any:
    """Of one reward of several; None where it has none of its own."""
    own = _mapping("limits", limits)
    with at("limits"):
        check_names(own, LIMIT_NAMES)
        LimitSettings(**own)
    return own or None


def _mapping(name: str, value: Any) -> dict[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise InvalidInput(f"{name} must be a mapping, got {shown(name, value)}")
    odd = [key for key in value or () if not isinstance(key, str)]
    if odd:
        raise InvalidInput(f"{name} must have names as keys, got {odd[0]!r}")
    return dict(value or {})
