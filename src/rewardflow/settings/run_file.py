"""Loads a run file and `key=value` overrides from the command line into one `RunSettings`.

Always true: an override wins over the file, and a later override over an earlier one. A relative path in the file is
resolved against the file's folder, a relative path in an override against the working directory. Loading builds only
the settings, never what they name. One error lists all mistakes found, each with its dotted key, the rule and the
value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from rewardflow.errors import InvalidInput
from rewardflow.reward.settings import split_options
from rewardflow.settings.loading import parse_override, read_mapping
from rewardflow.settings.reward_kinds import KINDS
from rewardflow.settings.reward_shape import check_reward, placed
from rewardflow.settings.run_keys import FREE, LIMITS, TOP, Key, field_of, keys, keys_of, nearest, outer_of, sections
from rewardflow.settings.run_settings import RunSettings
from rewardflow.settings.typed_values import ValueFitter, shown

# These texts name a file or something else. A text that starts like a path is a path.
_MAYBE_PATHS = (
    "policy.model",
    "policy.tokenizer",
    "policy.chat_template",
    "critic.model",
    "data.dataset",
    "validation.data.dataset",
)
_PATH_STARTS = ("./", "../", "~/")


def load_run(path: str | PathLike[str], overrides: Sequence[str] = ()) -> RunSettings:
    """Loads the settings of a run. An override is `section.key=value` with a YAML value, such as `trainer.lr=1e-5`."""
    return load_run_with_origins(path, overrides).settings


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """The settings of a run, and where each key that was given came from; all others have their defaults."""

    settings: RunSettings
    origins: Mapping[str, Literal["file", "command line"]]


def load_run_with_origins(path: str | PathLike[str], overrides: Sequence[str] = ()) -> LoadedRun:
    """As `load_run`, with the origin of each key."""
    path = Path(path)
    loader = _RunLoader()
    loader.add_file(read_mapping(path, what="a run file"), path.absolute().parent)
    for override in overrides:
        loader.add_override(override)
    run = loader.build()
    if run is None:
        raise InvalidInput(_message(path, loader.problems))
    return LoadedRun(run, loader.origins())


@dataclass(frozen=True, slots=True)
class _Given:
    """A value and where it came from; relative paths in it start at `folder`."""

    value: Any
    folder: Path
    is_override: bool = False  # otherwise it is from the file


class _RunLoader:
    """Gathers values by dotted key, then converts them and builds the records. Collects mistakes in `problems`."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._given: dict[str, _Given] = {}
        self._opened: set[str] = set()  # sections given as a mapping, also as an empty one

    def add_file(self, document: Mapping[Any, Any], folder: Path) -> None:
        for name, value in document.items():
            if "." in str(name):
                self.problems.append(f"a key of the file must be inside its section, without dots, got {name!r}")
            else:
                self._set(str(name), _Given(value, folder))

    def add_override(self, text: str) -> None:
        try:
            override = parse_override(text)
        except InvalidInput as error:
            self.problems.append(str(error))
        else:
            self._set(override.key, _Given(override.value, Path.cwd(), is_override=True))

    def origins(self) -> dict[str, Literal["file", "command line"]]:
        return {key: "command line" if given.is_override else "file" for key, given in self._given.items()}

    def build(self) -> RunSettings | None:
        """Returns None if there are problems."""
        if (reward := self._given.get("reward")) is not None:
            self._given.setdefault("reward_folder", _Given(str(reward.folder), reward.folder))
        values = self._values(TOP)
        if not self.problems:
            try:
                return RunSettings(**(values or {}))
            except InvalidInput as error:
                self.problems.append(str(error))
        return None

    # ---- which key a value is for ----

    def _set(self, name: str, given: _Given) -> None:
        if name in keys():
            self._given[name] = given
        elif name in sections() and name != TOP:
            self._set_section(name, given)
        elif (free := name.partition(".")[0]) in FREE and name != free:
            self._set_inside(free, name, given)
        else:
            self.problems.append(f"there is no setting {name!r}{_source(given)}; {nearest(name)}")

    def _set_section(self, section: str, given: _Given) -> None:
        """Replaces the whole section, with everything given for it before. An empty section has no settings."""
        if section == "runtime" and isinstance(given.value, str):
            given = dataclasses.replace(given, value=_runtime_in_short(given.value))
        if given.value is not None and not isinstance(given.value, Mapping):
            self.problems.append(f"{section} must be a mapping, got {shown(section, given.value)}{_source(given)}")
            return
        for key in [key for key in self._given if key.startswith(f"{section}.")]:
            del self._given[key]
        self._opened = {one for one in self._opened if not f"{one}.".startswith(f"{section}.")}
        if given.value is not None:
            self._opened.add(section)
        for name, value in (given.value or {}).items():
            self._set(f"{section}.{name}", dataclasses.replace(given, value=value))

    def _set_inside(self, key: str, name: str, given: _Given) -> None:
        """Sets a key inside a mapping whose keys are the user's own, such as `reward_kwargs.temperature`."""
        before = self._given.get(key, dataclasses.replace(given, value=None))
        is_kind = key == "reward" and isinstance(before.value, str) and before.value in KINDS
        outer = {"reward": before.value} if is_kind else before.value
        try:
            value = _with_inside(key, outer, name.split(".")[1:], given.value)
        except InvalidInput as error:
            self.problems.append(f"{error}{_source(given)}")
        else:
            self._given[key] = dataclasses.replace(before, value=value)

    # ---- from values to records ----

    def _values(self, section: str) -> dict[str, Any] | None:
        """Returns the fields of the section's record, with the sections inside it; None if one has a problem."""
        values = self._fitted(section)
        num_problems = len(self.problems)
        for inner in sections():
            if inner == TOP or outer_of(inner) != section or self._is_left_out(inner):
                continue
            inside = self._values(inner)
            if inside is not None:
                record = self._record(inner, inside)
                values = values if values is None else {**values, field_of(inner).name: record}
        return values if len(self.problems) == num_problems else None

    def _is_left_out(self, section: str) -> bool:
        """Whether the section is optional and nothing in it is given. Reports a required section that is missing."""
        if any(f"{name}.".startswith(f"{section}.") for name in (*self._given, *self._opened)):
            return False
        field = field_of(section)
        if field.default is None:
            return True
        is_inside = bool(outer_of(section))
        if is_inside and field.default is dataclasses.MISSING:
            self.problems.append(f"{section} must be given")
        return is_inside

    def _fitted(self, section: str) -> dict[str, Any] | None:
        """Returns the section's values by field, converted to their types; None if one is wrong or missing."""
        num_problems = len(self.problems)
        values = {}
        for key in keys_of(section):
            given = self._given.get(key.name)
            if given is not None:
                try:
                    values[key.field] = _fit(key, given)
                except InvalidInput as error:
                    self.problems.append(f"{error}{_source(given)}")
            elif key.is_required:
                self.problems.append(f"{key.name} must be given")
        return values if len(self.problems) == num_problems else None

    def _record(self, section: str, values: Mapping[str, Any]) -> Any:
        try:
            if section == LIMITS:
                split_options(values)
                return values
            (record,) = sections()[section]
            return record(**values)
        except InvalidInput as error:
            message = str(error)
            starts_with_field = message.partition(" ")[0] in [key.field for key in keys_of(section)]
            self.problems.append(f"{section}.{message}" if starts_with_field else f"{section}: {message}")
            return None


def _runtime_in_short(text: str) -> Mapping[str, Any]:
    """Reads the short form of `runtime`: a kind of runtime, or the address of a cluster."""
    return {"kind": text} if text in ("embedded", "ray") else {"kind": "ray", "address": text}


def _fit(key: Key, given: _Given) -> Any:
    fitter = ValueFitter(given.folder)
    value = fitter.fit(key.name, given.value, key.hint)
    if key.name == "reward":
        value = placed(value, given.folder)
        check_reward(value, {})
    if key.name in _MAYBE_PATHS and isinstance(value, str) and value.startswith(_PATH_STARTS):
        return str(Path(fitter.path(value)))
    return value


def _with_inside(key: str, outer: Any, names: Sequence[str], value: Any) -> Any:
    """Returns a copy of `outer` with the value at this path of names; creates the mappings that are missing."""
    if not names:
        return value
    if outer is not None and not isinstance(outer, Mapping):
        raise InvalidInput(f"{key} must be a mapping to have {names[0]!r} inside, got {shown(key, outer)}")
    first, *rest = names
    inside = dict(outer or {})
    inside[first] = _with_inside(f"{key}.{first}", inside.get(first), rest, value)
    return inside


def _source(given: _Given) -> str:
    return " (from the command line)" if given.is_override else ""


def _message(path: Path, problems: Sequence[str]) -> str:
    if len(problems) == 1:
        return f"{path}: {problems[0]}"
    return "\n".join([f"{path}: {len(problems)} mistakes", *(f"  - {problem}" for problem in problems)])
