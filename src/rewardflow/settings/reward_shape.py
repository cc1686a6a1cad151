"""Checks the form of the setting `reward`, without building a reward.

Always true: nothing here imports the user's code. A value that passes can go to the agent's loader, which checks the
rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rewardflow.errors import InvalidInput
from rewardflow.reward.settings import check_names
from rewardflow.settings.reward_kinds import KINDS
from rewardflow.settings.rules import did_you_mean
from rewardflow.settings.typed_values import resolve_path, shown

_FILE_ENDINGS = (".yaml", ".yml")


def check_reward(reward: Any, reward_kwargs: Mapping[str, Any]) -> None:
    """Accepts the name of a reward, a reward file, or the contents of one."""
    if isinstance(reward, str):
        _check_name("reward", reward)
    elif isinstance(reward, Mapping):
        _check_contents(reward)
    else:
        raise InvalidInput(f"reward must be text or a mapping, got {shown('reward', reward)}")
    if reward_kwargs and not is_named(reward):
        raise InvalidInput(
            "reward_kwargs are for a reward named 'file.py:name' or 'package.module:name'; others have their settings "
            f"beside them, got the reward_kwargs {', '.join(map(str, reward_kwargs))}"
        )


def is_named(reward: str | Mapping[str, Any]) -> bool:
    """Whether the value names the user's own code, instead of a reward file or the contents of one."""
    return isinstance(reward, str) and not reward.endswith(_FILE_ENDINGS)


def placed(reward: Any, folder: Path) -> Any:
    """Resolves paths against the folder, and turns the name of a kind into the contents of a reward file."""
    if not isinstance(reward, str):
        return reward
    if reward in KINDS:
        return {"reward": reward}
    if reward.endswith(_FILE_ENDINGS):
        return resolve_path(folder, reward)
    return placed_code(reward, folder)


def placed_code(spec: str, folder: Path) -> str:
    """Resolves the file of `file.py:name` or `file.py` against the folder; leaves `package.module:name` as it is."""
    place, colon, name = (spec, "", "") if spec.endswith(".py") else spec.rpartition(":")
    is_file = place.endswith(".py") or "/" in place
    return f"{resolve_path(folder, place)}{colon}{name}" if is_file else spec


def _check_name(key: str, name: str, *, with_kinds: bool = False) -> None:
    is_code = name.endswith(".py") or ("" not in (parts := name.rpartition(":")) and len(parts) == 3)
    if is_code or (with_kinds and name in KINDS) or (not with_kinds and name.endswith(_FILE_ENDINGS)):
        return
    rule = f"{key} must be " + ("a known kind, " if with_kinds else "a reward file ending in .yaml, ")
    raise InvalidInput(f"{rule}'file.py:name' or 'package.module:name', got {shown(key, name)}{_hint(name)}")


def _hint(name: str) -> str:
    if name in KINDS:
        return f"; the kind is written as a mapping, {{reward: {name}}}"
    return "; " + did_you_mean(name, KINDS, otherwise=f"known kinds: {', '.join(KINDS)}")


def _check_contents(contents: Mapping[str, Any]) -> None:
    if ("reward" in contents) == ("rewards" in contents):
        raise InvalidInput(f"reward must have either `reward` or `rewards` inside, got {shown('', contents)}")
    if "reward" in contents:
        _check_part("reward", contents)
        return
    check_names(contents, ("rewards", "limits"))
    parts = contents["rewards"]
    if not isinstance(parts, list | tuple) or not parts:
        raise InvalidInput(f"reward.rewards must be a list of at least one mapping, got {shown('rewards', parts)}")
    for i, part in enumerate(parts):
        _check_part(f"reward.rewards[{i}]", part)


def _check_part(key: str, part: Any) -> None:
    if not isinstance(part, Mapping) or not isinstance(part.get("reward"), str):
        raise InvalidInput(f"{key} must be a mapping in which `reward` is text, got {shown(key, part)}")
    _check_name(f"{key}.reward", part["reward"], with_kinds=True)
