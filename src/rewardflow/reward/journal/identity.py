"""Computes the identity that distinguishes rewards in journal keys.

Always true: the identity is the same in every run and on every machine while name, source, settings and `version` are.
A reward that ships with this package has a `FrozenIdentity` instead of name and source: its module may move and its
wording may change without making any journal pay again.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from rewardflow.reward.journal.canonical import canonical, identity_fields


@dataclass(frozen=True, slots=True)
class FrozenIdentity:
    """Replaces the name and the source of a shipped reward's class, as its attribute `frozen_identity`.

    `name` never changes. Raise `revision` by hand when the class gives other verdicts for the same settings; the first
    revisions are digests of the sources that version 0.1 hashed. A subclass has its own code, so it does not inherit
    the identity.
    """

    name: str
    revision: str


def identity_of(reward: Any, name: str, source_text: bytes, settings: list[Any], version: Any) -> str:
    """Returns the digest for journal keys; uses `name` and `source_text` unless the reward ships with this package."""
    frozen = _frozen_identity(reward)
    if frozen is None:
        frozen = FrozenIdentity(name, hashlib.blake2b(source_text, digest_size=16).hexdigest())
    parts = [frozen.name, frozen.revision, settings, version]
    return hashlib.blake2b(canonical(parts), digest_size=16).hexdigest()


def _frozen_identity(reward: Any) -> FrozenIdentity | None:
    """Returns the frozen identity of a shipped class, of its instance, or of an instance's method; else None."""
    reward = unwrapped(reward)
    suffix = ""
    if inspect.ismethod(reward):
        reward, suffix = reward.__self__, f".{reward.__name__}"
    owner = reward if isinstance(reward, type) else type(reward)
    frozen = vars(owner).get("frozen_identity")
    return FrozenIdentity(frozen.name + suffix, frozen.revision) if isinstance(frozen, FrozenIdentity) else None


def unwrapped(reward: Any) -> Any:
    """Returns the reward inside any partials."""
    while isinstance(reward, functools.partial):
        reward = reward.func
    return reward


def qualified_name(reward: Any) -> str:
    """Returns `module:qualname` of a reward that is given as an object."""
    reward = unwrapped(reward)
    named = reward if hasattr(reward, "__qualname__") else type(reward)
    return f"{getattr(named, '__module__', None) or 'builtins'}:{named.__qualname__}"


def source_of(reward: Any) -> bytes:
    """Returns the source text of a reward's function or class, or its name if the source is not available."""
    reward = unwrapped(reward)
    owner = reward.__self__ if inspect.ismethod(reward) else reward
    if not isinstance(owner, type | ModuleType) and not inspect.isroutine(owner):
        owner = type(owner)
    try:
        text = inspect.getsource(owner)
    except (OSError, TypeError):  # typed at a prompt, or written in C
        text = qualified_name(owner) if not isinstance(owner, ModuleType) else owner.__name__
    return text.encode("utf-8", "surrogatepass")


def carried_settings(reward: Any) -> Any:
    """Returns the settings inside an object that the user built: judges with different models must not share verdicts.

    An instance whose attributes differ in every run is called again in every run. To avoid that, name the class and its
    reward_kwargs instead.
    """
    if isinstance(reward, functools.partial):
        return [list(reward.args), reward.keywords, carried_settings(reward.func)]
    if inspect.ismethod(reward):
        return carried_settings(reward.__self__)
    if inspect.isfunction(reward):
        return [_cell(cell) for cell in reward.__closure__ or ()]
    if dataclasses.is_dataclass(reward) and not isinstance(reward, type):
        return identity_fields(reward)
    return getattr(reward, "__dict__", None)


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet assigned
        return None
