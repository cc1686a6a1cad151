"""What the setting `reward` may look like, without building a reward.

Always true: nothing of the user's is imported here; what passes can be handed to the agent's loader, which checks the
rest.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rewardflow.errors import InvalidInput
from rewardflow.reward.settings import check_names
from rewardflow.settings.reward_kinds import KINDS
from rewardflow.settings.typed_values import shown

_FILE_ENDINGS = (".yaml", ".yml")


def check_reward(reward: Any, reward_kwargs: Mapping[str, Any]) -> None:
    """A name, a reward file, or the contents of one."""
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
    """Whether it is the user's own code, and neither a reward file nor the contents of one."""
    return isinstance(reward, str) and not reward.endswith(_FILE_ENDINGS)


def placed(reward: Any, folder: Path) -> Any:
    """With paths from the folder, and a kind alone as the contents of a reward file."""
    if not isinstance(reward, str):
        return reward
    if reward in KINDS:
        return {"reward": reward}
    if reward.endswith(_FILE_ENDINGS):
        return os.path.join(folder, os.path.expanduser(reward))
    place, colon, name = (reward, "", "") if reward.endswith(".py") else reward.rpartition(":")
    if not place.endswith(".py") and "/" not in place:
        return reward
    return f"{os.path.join(folder, os.path.expanduser(place))}{colon}{name}"


def _check_name(key: str, name: str, *, with_kinds: bool = False) -> None:
    is_code = name.endswith(".py") or ("" not in (parts := name.rpartition(":")) and len(parts) == 3)
    if is_code or (with_kinds and name in KINDS) or (not with_kinds and name.endswith(_FILE_ENDINGS)):
        return
    rule = f"{key} must be " + ("a known kind, " if with_kinds else "a reward file ending in .yaml, ")
    raise InvalidInput(f"{rule}'file.py:name' or 'package.module:name', got {shown(key, name)}{_nearest(name)}")


def _nearest(name: str) -> str:
    if name in KINDS:
        return f"; the kind is written as a mapping, {{reward: {name}}}"
    nearest = difflib.get_close_matches(name, KINDS, n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else f"; known kinds: {', '.join(KINDS)}"


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
