"""Describes a shared agent as plain data: rewards by name, and settings.

Always true: another process can build the agent from a spec without code from this one; making a spec refuses by name
what cannot be sent. Two specs describe the same agent if `difference` finds nothing. It names what differs, but never
shows the values of a reward's own settings, which may hold keys.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import orjson

from rewardflow.errors import InvalidInput
from rewardflow.observe.redact import redact
from rewardflow.reward.agent import RewardAgent
from rewardflow.reward.code.source import RewardSource
from rewardflow.reward.component import Weighted
from rewardflow.reward.limits.run_ledgers import RunLedgers
from rewardflow.reward.settings import AgentSettings, LimitSettings, split_options
from rewardflow.services.reward_file import load_reward_contents
from rewardflow.settings.loading import read_mapping
from rewardflow.types import EMPTY

logger = logging.getLogger(__name__)

_REFUSED = {
    "run": "each client names its own run when it connects",
    "run_dir": "a run directory belongs to one run, and the shared agent serves several",
}
_DEFAULTS: Mapping[str, Any] = {
    field.name: field.default for record in (AgentSettings, LimitSettings) for field in dataclasses.fields(record)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """A description of an agent. `AgentSpec.of` makes it; `build` makes the agent in the process that runs it."""

    rewards: tuple[Weighted, ...] = ()  # rewards by name, or
    contents: Mapping[str, Any] | None = None  # the contents of a reward's YAML file
    folder: str = "."  # where relative paths in the contents start
    options: Mapping[str, Any] = EMPTY
    sources: Mapping[str, str] = EMPTY  # the named Python files, with digests of their contents

    @classmethod
    def of(
        cls,
        reward: str | os.PathLike[str] | Mapping[str, Any] | Weighted | Sequence[Weighted],
        *,
        reward_kwargs: Mapping[str, Any] = EMPTY,
        folder: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> AgentSpec:
        """Accepts `file.py:name`, `package.module:name`, a YAML file, its contents, or `Weighted` rewards by name."""
        options = _checked(options)
        place = Path.cwd() if folder is None else Path(folder)
        if isinstance(reward, str | os.PathLike) and os.fspath(reward).endswith((".yaml", ".yml")):
            path = Path(reward).absolute()
            reward, place = read_mapping(path, what="a reward file"), path.parent if folder is None else place
        if isinstance(reward, Mapping):
            if reward_kwargs:
                raise InvalidInput("reward_kwargs of a reward from YAML must be in the YAML file")
            _check_plain("the reward's contents", reward)
            _refuse_what_runs_own(reward.get("limits") or EMPTY)
            sources = dict(_digests(_named_files(reward, place.absolute())))
            return cls(contents=dict(reward), folder=str(place.absolute()), options=options, sources=sources)
        parts = tuple(_named(part) for part in _as_weighted(reward, reward_kwargs))
        sources = dict(_digests(str(part.reward).rpartition(":")[0] for part in parts))
        return cls(rewards=parts, options=options, sources=sources)

    def build(self, run_ledgers: RunLedgers | None = None) -> RewardAgent:
        for path, digest in _digests(self.sources):
            if digest != self.sources[path]:
                logger.warning("%s has changed since this agent was described; verdicts may differ", path)
        if self.contents is None:
            rewards, options = self.rewards, self.options
        else:
            loaded = load_reward_contents(self.contents, folder=self.folder)
            rewards, options = loaded.parts, {**loaded.options, **self.options}
        return RewardAgent(rewards, serves_runs=True, run_ledgers=run_ledgers, **cast("Any", options))

    def difference(self, other: AgentSpec) -> str | None:
        """Says in words how the other spec differs; None if it describes the same agent."""
        ours, theirs = dict(self._facts()), dict(other._facts())
        differences = []
        for name in sorted(ours.keys() | theirs.keys()):
            one, another = ours.get(name, _NOTHING), theirs.get(name, _NOTHING)
            if one != another:
                shows = name in self.options or name in other.options
                differences.append(f"{name} ({_shown(one)} and {_shown(another)})" if shows else name)
        return ", ".join(differences) or None

    def _facts(self) -> Iterator[tuple[str, object]]:
        yield from ((name, value) for name, value in self.options.items() if value != _DEFAULTS[name])
        for part in self.rewards:
            name = str(part.reward)
            yield name, (part.weight, part.name, part.account, dict(part.limits or {}))
            yield from ((f"reward_kwargs.{key} of {name}", value) for key, value in part.reward_kwargs.items())
        yield from ((f"`{key}` in the reward's YAML", value) for key, value in (self.contents or EMPTY).items())
        yield from ((f"the text of {path}", digest) for path, digest in self.sources.items())


_NOTHING = object()


def _shown(value: object) -> str:
    return "the default" if value is _NOTHING else redact(repr(value))


def _as_weighted(reward: Any, reward_kwargs: Mapping[str, Any]) -> list[Weighted]:
    if isinstance(reward, Weighted):
        return [reward]
    if isinstance(reward, list | tuple) and reward and all(isinstance(part, Weighted) for part in reward):
        return list(reward)
    return [Weighted(reward, reward_kwargs=reward_kwargs)]


def _named(part: Weighted) -> Weighted:
    """Returns the reward with its full path; refuses an object, because another process can only look up a name."""
    if not isinstance(part.reward, str | os.PathLike):
        shown = RewardSource.of(part.reward, part.reward_kwargs).name if callable(part.reward) else repr(part.reward)
        raise InvalidInput(
            "a shared agent builds its rewards itself, so they must be named 'file.py:name' or 'package.module:name' "
            f"or described in YAML, got the object {shown}"
        )
    source = RewardSource.of(os.fspath(part.reward), part.reward_kwargs)
    for name, value in source.kwargs.items():
        _check_plain(f"reward_kwargs[{name!r}] of {source.name}", value)
    return dataclasses.replace(part, reward=source.spec, reward_kwargs=source.kwargs)


def _refuse_what_runs_own(options: Mapping[str, Any]) -> None:
    for name, why in _REFUSED.items():
        if name in options:
            raise InvalidInput(f"a shared agent takes no {name!r}: {why}")


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    _refuse_what_runs_own(options)
    split_options(options)
    journal = options.get("journal")
    own = {} if journal is None else {"journal": str(Path(journal).absolute())}
    return {**options, **own}


def _check_plain(what: str, value: object) -> None:
    try:
        orjson.dumps(value)
    except TypeError as error:
        raise InvalidInput(f"{what} must be plain data to travel to the shared agent, got {error}") from None


def _named_files(value: object, folder: Path) -> Iterator[str]:
    """Yields the Python files named anywhere in the contents."""
    if isinstance(value, Mapping):
        for one in value.values():
            yield from _named_files(one, folder)
    elif isinstance(value, list):
        for one in value:
            yield from _named_files(one, folder)
    elif isinstance(value, str) and "\n" not in value:
        place = value if value.endswith(".py") else value.rpartition(":")[0]
        if place.endswith(".py"):
            yield str(folder / place)


def _digests(paths: Any) -> Iterator[tuple[str, str]]:
    for path in paths:
        if path.endswith(".py") and os.path.isfile(path):
            yield path, hashlib.blake2b(Path(path).read_bytes(), digest_size=16).hexdigest()
