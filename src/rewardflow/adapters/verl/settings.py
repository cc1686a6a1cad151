"""Reads the section `rewardflow` of a verl configuration.

Always true: a `VerlSettings` that exists is valid; the error for an unknown name suggests the nearest known one.
Whatever verl has a setting for (batch sizes, mini-batches, the user's reward file) is read from verl's setting and has
no second one here.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from rewardflow.errors import InvalidInput
from rewardflow.flow.schedule import Order
from rewardflow.observe.run_directory import JOURNAL_FILE
from rewardflow.reward.settings import AGENT_NAMES, LIMIT_NAMES, check_names, split_options
from rewardflow.services.rules.length import Length
from rewardflow.shared_agent.spec import AgentSpec
from rewardflow.types import EMPTY

Stream = Literal["batch", "mini_batch"]

SECTION = "rewardflow"
VERL_RULES = "verl.utils.reward_score:default_compute_score"  # verl's rules for known data sets: the default
SANDBOX_RULES = "rewardflow.adapters.verl.sandbox_rules:SandboxRules"  # the same where verl has a sandbox for code
DEFAULT_RUN_DIR = "default"
_MIN_GROUP = 2  # the default of `min_group` where prompts have more than one rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class VerlSettings:
    """rewardflow's settings in a verl run. `agent_options` are those of `RewardAgent`, by their names."""

    reward: str = VERL_RULES
    reward_kwargs: Mapping[str, Any] = field(default_factory=dict)
    stream: Stream = "mini_batch"
    order: Order = "fixed"
    max_staleness: int = 0
    min_group: int = _MIN_GROUP
    behaviour_weight_cap: float | None = None
    overlong: Length | None = None  # DAPO's penalty for long responses, in tokens, added to the score
    run_dir: str | None = None
    agent: str | None = None  # the name of an agent that several jobs share; None starts one for this job
    run: str = "default"
    allow_untested_verl: bool = False  # run inside a release of verl that the adapter was not tested with
    agent_options: Mapping[str, Any] = EMPTY

    def __post_init__(self) -> None:
        for name, allowed in (("stream", Stream), ("order", Order)):
            value = getattr(self, name)
            if value not in get_args(allowed):
                raise InvalidInput(f"rewardflow.{name} must be one of {', '.join(get_args(allowed))}, got {value!r}")
        if not isinstance(self.allow_untested_verl, bool):
            raise InvalidInput(
                f"rewardflow.allow_untested_verl must be true or false, got {self.allow_untested_verl!r}"
            )
        for name, at_least in (("max_staleness", 0), ("min_group", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
                raise InvalidInput(f"rewardflow.{name} must be a whole number of at least {at_least}, got {value!r}")
        cap = self.behaviour_weight_cap
        if cap is not None and (not isinstance(cap, int | float) or isinstance(cap, bool) or cap <= 0):
            raise InvalidInput(f"rewardflow.behaviour_weight_cap must be a positive number or null, got {cap!r}")
        split_options(self.agent_options)


OWN_NAMES = tuple(item.name for item in dataclasses.fields(VerlSettings) if item.name != "agent_options")
NAMES = (*OWN_NAMES, *(name for name in (*AGENT_NAMES, *LIMIT_NAMES) if name not in OWN_NAMES))


def settings_of(config: Mapping[str, Any]) -> VerlSettings:
    """Reads the settings from a whole verl configuration: plain data with its references resolved."""
    section = config.get(SECTION) or {}
    if not isinstance(section, Mapping):
        raise InvalidInput(f"the section rewardflow must be settings with names, got {section!r}")
    check_names(section, NAMES)
    own = {name: value for name, value in section.items() if name in OWN_NAMES}
    options = {name: value for name, value in section.items() if name not in OWN_NAMES}
    own["reward"], own["reward_kwargs"] = _reward(config, own)
    own["min_group"] = _min_group(own.get("min_group"), config["actor_rollout_ref"]["rollout"]["n"])
    own["overlong"] = _overlong(own.get("overlong"))
    trainer = config["trainer"]
    own.setdefault("run", f"{trainer['project_name']}/{trainer['experiment_name']}")
    own["run_dir"] = _run_dir(own.get("run_dir", DEFAULT_RUN_DIR), trainer)
    if own["run_dir"] is not None:
        options.setdefault("journal", os.path.join(own["run_dir"], JOURNAL_FILE))
    return VerlSettings(**own, agent_options=options)


def spec_of(settings: VerlSettings) -> AgentSpec:
    """Describes the agent for these settings."""
    return AgentSpec.of(settings.reward, reward_kwargs=dict(settings.reward_kwargs), **settings.agent_options)


def _reward(config: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    users = config["reward"].get("custom_reward_function") or {}
    named, kwargs = own.get("reward"), dict(own.get("reward_kwargs") or {})
    if named is not None and users.get("path"):
        raise InvalidInput(
            f"a run has one reward: set rewardflow.reward or reward.custom_reward_function.path, got {named!r} and "
            f"{users['path']!r}"
        )
    if users.get("path"):
        return f"{_file_or_module(users['path'])}:{users['name']}", {**dict(users.get("reward_kwargs") or {}), **kwargs}
    if named is not None and not isinstance(named, str):
        raise InvalidInput(f"rewardflow.reward must be the name of a file or of code, got {named!r}")
    if named is not None:
        return named, kwargs
    sandbox = _sandbox(config["reward"].get("sandbox_fusion") or {})
    return SANDBOX_RULES if sandbox else VERL_RULES, {**sandbox, **kwargs}


def _file_or_module(path: str) -> str:
    """Removes verl's marks `pkg://` and `file://`: for rewardflow a module has dots, and a file ends in `.py`."""
    if path.startswith("pkg://"):
        return path.removeprefix("pkg://").replace("/", ".")
    return path.removeprefix("file://")


def _sandbox(sandbox: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of the code sandbox that verl's rules use; nothing if there is none."""
    if not sandbox.get("url"):
        return {}
    given = {name: sandbox.get(name) for name in ("memory_limit_mb", "max_concurrent")}
    return {"sandbox_fusion_url": sandbox["url"]} | {name: value for name, value in given.items() if value is not None}


def _min_group(value: Any, group_size: int) -> Any:
    """Returns the smallest number of verdicts with which a group is trained: at most all of its rollouts."""
    if value is None:
        return min(_MIN_GROUP, group_size)
    if isinstance(value, int) and value > group_size:
        raise InvalidInput(
            "no group could be trained: rewardflow.min_group must be at most actor_rollout_ref.rollout.n, got "
            f"{value} and {group_size}"
        )
    return value


def _overlong(value: Any) -> Length | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InvalidInput(f"rewardflow.overlong must be settings with names (limit, buffer, penalty), got {value!r}")
    check_names(value, ("limit", "buffer", "penalty"))
    if not {"limit", "buffer"} <= value.keys():
        raise InvalidInput(f"rewardflow.overlong must have limit and buffer, got {dict(value)!r}")
    return Length(unit="tokens", **value)


def _run_dir(value: Any, trainer: Mapping[str, Any]) -> str | None:
    if value is None or (value == DEFAULT_RUN_DIR and trainer["default_local_dir"] is None):
        return None
    if value == DEFAULT_RUN_DIR:
        return str(Path(str(trainer["default_local_dir"])).absolute() / SECTION)
    return str(Path(os.path.expanduser(str(value))).absolute())
