"""Finds a reward by its name and builds it.

Always true: every mistake in a reward's file, name or settings raises a `RewardLoadError` that says what to change,
before anything is sent.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

from rewardflow.errors import RewardLoadError
from rewardflow.observe.redact import redact, register_settings
from rewardflow.reward.code.reward_forms import RewardLike
from rewardflow.reward.journal.identity import carried_settings, identity_of, qualified_name, source_of

DEFAULT_NAME = "compute_score"
_FORMS = "'file.py:name' or 'package.module:name'"
_MAX_NAMES_SHOWN = 10

_import_lock = threading.RLock()  # re-entrant, because a reward's file may load another reward


@dataclass(frozen=True, slots=True)
class FoundReward:
    """A reward after its import and, if it is a class, after building an instance."""

    target: Any
    call_kwargs: Mapping[str, Any]  # reward_kwargs to pass with every call; a class got them when it was built
    identity: str


@dataclass(frozen=True, slots=True)
class RewardSource:
    """A reward, by name or as an object, with its settings; can be pickled if both can."""

    spec: RewardLike
    kwargs: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, reward: RewardLike | RewardSource, reward_kwargs: Mapping[str, Any] | None = None) -> RewardSource:
        """Makes a source; makes paths absolute, so that a process with another working directory finds the file."""
        kwargs = dict(reward_kwargs or {})
        if odd := [key for key in kwargs if not isinstance(key, str)]:
            raise RewardLoadError(f"reward_kwargs must have names as keys, got {odd}")
        register_settings(kwargs)
        if isinstance(reward, RewardSource):
            return cls(reward.spec, {**reward.kwargs, **kwargs})
        if isinstance(reward, os.PathLike):
            reward = os.fspath(reward)
        if isinstance(reward, str):
            place, name = split_name(reward)
            reward = f"{_absolute(place)}:{name}" if _is_path(place) else reward
        return cls(reward, kwargs)

    @property
    def name(self) -> str:
        """The name without folders, as in `judge.py:compute_score`, so that it is the same on every machine."""
        if not isinstance(self.spec, str):
            return qualified_name(self.spec)
        place, name = split_name(self.spec)
        return f"{PurePath(place).name if _is_path(place) else place}:{name}"

    def find(self) -> FoundReward:
        """Imports the reward and, if it is a class, builds it."""
        found, source_text = self._import()
        is_class = isinstance(found, type)
        target = _build(found, self.kwargs, self.name) if is_class else found
        return FoundReward(
            target=target,
            call_kwargs={} if is_class else self.kwargs,
            identity=identity_of(
                found, self.name, source_text, self._settings_of(target, is_class), getattr(target, "version", None)
            ),
        )

    def _settings_of(self, target: Any, is_class: bool) -> list[Any]:
        """Returns the settings that distinguish rewards with the same code; `identity_settings()` overrides them."""
        own = getattr(target, "identity_settings", None)
        if callable(own):
            return [own(), {} if is_class else self.kwargs]
        carried = None if is_class or isinstance(self.spec, str) else carried_settings(target)
        return [self.kwargs, carried]

    def build(self) -> Callable[..., Any]:
        """Loads the reward and returns the plain function to call, for worker processes."""
        from rewardflow.reward.code.contract import load_reward  # here, because contract imports this module

        register_settings(self.kwargs)  # this process must know the secrets, too
        return load_reward(self).function

    def _import(self) -> tuple[Any, bytes]:
        """Returns the object and its source text."""
        if not isinstance(self.spec, str):
            _check_callable(self.spec, self.name)
            return self.spec, source_of(self.spec)
        place, name = split_name(self.spec)
        module, source_text = _import_file(place, name) if _is_path(place) else _import_module(place)
        found = getattr(module, name, None)
        if found is None:
            raise RewardLoadError(f"{place} has no {name!r}; {_public_callables(module, name)}")
        _check_callable(found, self.name, module)
        return found, source_text


# -- names --


def split_name(spec: str) -> tuple[str, str]:
    """Splits a reward's name into place and name; a file without a name means its `compute_score`."""
    if spec.endswith(".py"):
        return spec, DEFAULT_NAME
    place, colon, name = spec.rpartition(":")
    if not colon or not place:
        raise RewardLoadError(f"a reward is named {_FORMS}, got {spec!r}")
    return place, name or DEFAULT_NAME


def _is_path(place: str) -> bool:
    return place.endswith(".py") or "/" in place or os.sep in place


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _public_callables(module: ModuleType, wanted: str = "") -> str:
    """Lists what the user may have meant: the module's own callables, or else imported ones, the nearest name first."""
    names = [name for name, value in vars(module).items() if not name.startswith("_") and callable(value)]
    own = [name for name in names if getattr(vars(module)[name], "__module__", None) == module.__name__] or names
    if not own:
        return "it has no public callables"
    own.sort(key=lambda name: -difflib.SequenceMatcher(None, wanted.lower(), name.lower()).ratio())
    more = f" and {len(own) - _MAX_NAMES_SHOWN} more" if len(own) > _MAX_NAMES_SHOWN else ""
    return f"it has {', '.join(own[:_MAX_NAMES_SHOWN])}{more}"


# -- importing --


def _import_file(path: str, name: str) -> tuple[ModuleType, bytes]:
    """Runs a file as a separate module, once per content: an edited file gives a new module, an equal one the same."""
    path = _absolute(path)
    try:
        source_text = Path(path).read_bytes()
    except FileNotFoundError:
        raise RewardLoadError(
            f"the reward's file must exist, got {path} (for {name!r}; the working directory is {os.getcwd()})"
        ) from None
    except OSError as error:
        raise RewardLoadError(f"the reward's file cannot be read: {error}") from error
    digest = hashlib.blake2b(path.encode("utf-8", "surrogateescape") + b"\0" + source_text, digest_size=8).hexdigest()
    module_name = f"rewardflow_reward_{Path(path).stem}_{digest}"
    with _import_lock:
        module = sys.modules.get(module_name)
        if module is None:
            module = _run_file(path, source_text, module_name)
    return module, source_text


def _run_file(path: str, source_text: bytes, module_name: str) -> ModuleType:
    """Compiles and runs a file without the bytecode cache, which misses an edit of equal size within a second."""
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None:
        raise RewardLoadError(f"a reward's file must end in .py, got {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickle look up their module while it runs
    try:
        exec(compile(source_text, path, "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:
        del sys.modules[module_name]
        if isinstance(error, Exception | SystemExit):
            raise RewardLoadError(f"importing {path} raised {_describe_error(error, path)}") from error
        raise
    return module


def _import_module(place: str) -> tuple[ModuleType, bytes]:
    try:
        module = importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise RewardLoadError(f"importing {place} raised {_describe_error(error)}") from error
        raise RewardLoadError(f"there is no module {error.name!r}{_module_hint(place)}") from error
    except (Exception, SystemExit) as error:
        raise RewardLoadError(f"importing {place} raised {_describe_error(error)}") from error
    return module, source_of(module)


def _module_hint(place: str) -> str:
    path = Path(*place.split(".")).with_suffix(".py")
    if path.is_file():
        return f"; to load the file {path}, write '{path}:name'"
    return f"; a reward is named {_FORMS}, and modules are looked up on sys.path (PYTHONPATH)"


def _describe_error(error: BaseException, path: str | None = None) -> str:
    """Returns the error and its place: the innermost line in the user's file, or else the innermost line of all."""
    frames = traceback.extract_tb(error.__traceback__)
    place = next((frame for frame in reversed(frames) if frame.filename == path), frames[-1] if frames else None)
    file, line = (place.filename, place.lineno) if place else (path, None)
    if isinstance(error, SyntaxError) and error.lineno is not None:
        file, line = error.filename, error.lineno
    shown = redact(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
    return shown if line is None else f"{shown} ({file}, line {line})"


# -- building --


def _build(cls: type, kwargs: Mapping[str, Any], name: str) -> Any:
    try:
        parameters = inspect.signature(cls).parameters
    except (TypeError, ValueError):  # some classes written in C; the call below says what is wrong
        pass
    else:
        _check_settings(list(parameters.values()), kwargs, name)
    try:
        return cls(**kwargs)
    except Exception as error:
        file = getattr(sys.modules.get(cls.__module__), "__file__", None)
        given = ", ".join(kwargs) or "none"
        raise RewardLoadError(
            f"building {name} (reward_kwargs: {given}) raised {_describe_error(error, file)}"
        ) from error


def _check_settings(parameters: list[inspect.Parameter], kwargs: Mapping[str, Any], name: str) -> None:
    fixed = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    known = [p.name for p in fixed if p.kind is not p.POSITIONAL_ONLY]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    problems = {
        "missing": [p.name for p in fixed if p.default is p.empty and not (p.name in kwargs and p.name in known)],
        "unknown": [] if takes_any else [key for key in kwargs if key not in known],
    }
    if any(problems.values()):
        shown = "; ".join(f"{problem}: {', '.join(names)}" for problem, names in problems.items() if names)
        takes = ", ".join(known) or "none"
        raise RewardLoadError(f"reward_kwargs must fit the parameters of {name} ({takes}), got {shown}")


def _check_callable(found: Any, name: str, module: ModuleType | None = None) -> None:
    if isinstance(found, type) or scoring_function(found) is not None:
        return
    others = "" if module is None else f"; {_public_callables(module, name.rpartition(':')[2])}"
    raise RewardLoadError(
        f"a reward must be a function, or a class or object with score_group, {DEFAULT_NAME} or __call__, "
        f"got {name}, a {type(found).__name__}{others}"
    )


def scoring_function(target: object) -> Callable[..., Any] | None:
    """Returns the function that scores: `score_group` if it exists, else `compute_score`, else the object itself."""
    if isinstance(target, ModuleType):
        return None
    for method in ("score_group", DEFAULT_NAME):
        found: object = getattr(target, method, None)
        if callable(found):
            return found
    return target if callable(target) else None
