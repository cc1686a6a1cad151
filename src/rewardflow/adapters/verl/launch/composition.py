"""Composes a verl configuration as verl's main would, and checks it before anything starts.

Always true: nothing starts and nothing of verl's trainer is imported; a setting that is refused here would have been
ignored, or would have failed later and further from its cause.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module  # hydra and omegaconf come with verl
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from rewardflow.adapters.verl.config_checks import check_correction, check_estimator, check_mode
from rewardflow.adapters.verl.launch.overrides import VerlOverride
from rewardflow.adapters.verl.launch.rewriting import NOT_SET
from rewardflow.adapters.verl.launch.translation import SWITCHES, CommandLine
from rewardflow.adapters.verl.launch.unread_settings import leaves, refuse_unread
from rewardflow.adapters.verl.settings import SECTION, VerlSettings, settings_of
from rewardflow.errors import InvalidInput

MISSING = "???"  # the value of a setting that must be set
SAMPLER = (
    "trainer.v1.sampler.custom_sampler.path=pkg://rewardflow.adapters.verl.own_modes.sampler",
    "trainer.v1.sampler.custom_sampler.name=replay_buffer",
)
ONE_WORKER = "reward.num_workers=1"
MODES = ("sync", "colocate_async", "separate_async", SECTION)
GROUPS = ("model_engine",)  # settings that decide the defaults of others


def completed(command: CommandLine) -> tuple[CommandLine, dict[str, Any]]:
    """Adds what this run needs and the user left open. Returns the command line and its configuration."""
    command = given = _keeping_the_users_file(command)
    composed = _compose(given)
    config = _plain(composed)
    _refuse_removed(config, given)
    if config["actor_rollout_ref"]["rollout"]["name"] == MISSING:
        command = command.adding("actor_rollout_ref.rollout.name=vllm", "verl's default at the time of the recipe")
    if _filters_groups(config) and "stream" not in (config.get(SECTION) or {}):
        command = command.adding(f"++{SECTION}.stream=batch", "algorithm.filter_groups chooses among a whole batch")
    if _has_idle_workers(config, given):
        command = command.adding(ONE_WORKER, "in this mode the processes that generate ask the agent themselves")
    if _wants_sampler(config):
        for word in SAMPLER:
            command = command.adding(word, "counts verdicts in verl's own modes")
    added = command.overrides[: len(command.overrides) - len(given.overrides)]
    return command, _plain(_with(composed, added)) if added else config


def _keeping_the_users_file(command: CommandLine) -> CommandLine:
    """Leaves out our mode or manager where the user's own configuration names another: that is their choice."""
    added = [word for word in SWITCHES if any(note.after == word for note in command.notes if note.before == NOT_SET)]
    if command.config_path is None or not added:
        return command
    defaults = dict(leaves(defaults_of(command)))
    chosen = dict(leaves(compose(replace(command, overrides=tuple(set(command.overrides) - set(added))))))
    for word in added:
        key = word.partition("=")[0]
        if chosen.get(key) != defaults.get(key):
            command = command.leaving_out(word)
    return command


def _refuse_removed(config: Mapping[str, Any], command: CommandLine) -> None:
    """Refuses `~` for a setting of verl's defaults: verl and this adapter read those without checking."""
    taken = [VerlOverride.parse(word) for word in command.overrides if word.startswith("~")]
    if not taken:
        return
    lacking = dict(leaves(defaults_of(command))).keys() - dict(leaves(config)).keys()
    for override in taken:
        if any(key == override.key or key.startswith(f"{override.key}.") for key in lacking):
            raise InvalidInput(f"verl reads {override.key} and must find it, got {override}; set it to another value")


def _own_sections(command: CommandLine) -> list[str]:
    """Returns the sections and config groups of the user's own configuration."""
    if command.config_path is None:
        return []
    searched = tuple(word for word in command.overrides if word.startswith("hydra.searchpath"))
    groups = [place.name for place in Path(command.config_path).iterdir() if place.is_dir()]
    return [*compose(replace(command, overrides=searched)), *groups]


def _wants_sampler(config: Mapping[str, Any]) -> bool:
    """Whether the run needs our sampler: in verl's own modes only a sampler can reach verl's loggers."""
    v1 = config["trainer"]["v1"]
    has_own = (v1["sampler"].get("custom_sampler") or {}).get("path")
    is_judged = config["reward"]["reward_manager"]["name"] == SECTION
    return bool(is_judged and v1["trainer_mode"] != SECTION and not has_own)


def _has_idle_workers(config: Mapping[str, Any], command: CommandLine) -> bool:
    """Whether verl would start its default number of reward workers for a mode that asks none of them."""
    key, _, few = ONE_WORKER.partition("=")
    is_named = any(VerlOverride.parse(word).key == key for word in command.overrides)
    is_default = config["reward"]["num_workers"] == defaults_of(command)["reward"]["num_workers"] > int(few)
    return config["trainer"]["v1"]["trainer_mode"] == SECTION and is_default and not is_named


def _filters_groups(config: Mapping[str, Any]) -> bool:
    is_ours = config["trainer"]["v1"]["trainer_mode"] == SECTION
    return is_ours and bool((config["algorithm"].get("filter_groups") or {}).get("enable"))


def compose(command: CommandLine) -> dict[str, Any]:
    """Composes the whole configuration, as plain data."""
    return _plain(_compose(command))


def _compose(command: CommandLine) -> Any:
    """Composes the configuration with its references, as hydra does. This reads some thirty files."""
    hydra = import_module("hydra")
    exceptions = import_module("hydra.errors")
    try:
        own = command.config_path or str(verl_package() / "trainer" / "config")
        with hydra.initialize_config_dir(own, version_base=None):
            return hydra.compose(command.config_name, overrides=list(command.overrides))
    except exceptions.HydraException as error:
        raise InvalidInput(f"verl's configuration must take every setting: {_reason(error)}") from error


def _with(composed: Any, words: Sequence[str]) -> Any:
    """Adds words to a composed configuration as hydra would, without reading all files again."""
    parser = import_module("hydra.core.override_parser.overrides_parser").OverridesParser.create()
    for word in parser.parse_overrides(list(words)):
        import_module("omegaconf").OmegaConf.update(composed, word.key_or_group, word.value(), force_add=True)
    return composed


def _plain(composed: Any) -> dict[str, Any]:
    return dict(import_module("omegaconf").OmegaConf.to_container(composed, resolve=True))


def verl_package() -> Path:
    """Finds the installed verl without importing verl, which takes many seconds."""
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise InvalidInput("verl must be installed beside rewardflow, got none")
    return Path(spec.submodule_search_locations[0])


def defaults_of(command: CommandLine) -> Mapping[str, Any]:
    """Returns verl's own configuration for the chosen engine."""
    return _own_defaults(tuple(word for word in command.overrides if word.partition("=")[0] in GROUPS))


@cache  # composing takes half a second, and the files of an installed verl do not change
def _own_defaults(groups: tuple[str, ...]) -> Mapping[str, Any]:
    return compose(CommandLine(overrides=groups))


def differences(config: Mapping[str, Any], default_config: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Lists key, verl's default and this run's value of every setting that differs, sorted by key."""
    defaults, values = dict(leaves(default_config)), dict(leaves(config))
    return [
        (key, defaults.get(key), values.get(key))
        for key in sorted(defaults.keys() | values.keys())
        if defaults.get(key) != values.get(key)
    ]


def check(command: CommandLine, config: Mapping[str, Any], default_config: Mapping[str, Any]) -> VerlSettings:
    """Refuses what nothing would honour. Returns rewardflow's settings."""
    for section in ("custom_reward_function", "reward_model", "sandbox_fusion"):
        for key, value in leaves(config.get(section) or {}, section):
            if value is not None:
                raise InvalidInput(f"verl ignores {key}, its place is under `reward`; got {key}={value!r}")
    if not config["trainer"]["use_v1"]:
        raise InvalidInput("rewardflow is a mode of verl's v1 trainer, got trainer.use_v1=False")
    _refuse_unknown_mode(config["trainer"]["v1"]["trainer_mode"])
    refuse_unread(config, default_config, command.overrides, own_sections=_own_sections(command))
    settings = settings_of(config)
    check_estimator(config["algorithm"]["adv_estimator"])
    if config["trainer"]["v1"]["trainer_mode"] == SECTION:
        check_mode(config)
        return settings
    check_correction(config)
    if config["reward"]["reward_manager"]["name"] != SECTION:
        _refuse_without_manager(config)
    return settings


def _refuse_unknown_mode(mode: str) -> None:
    """Refuses an unknown mode. Where other plug-ins load later, they may register it, so it is accepted."""
    plugins = [plugin.name for plugin in entry_points(group="verl.plugins") if plugin.name != SECTION]
    if mode not in MODES and not plugins and not os.environ.get("VERL_USE_EXTERNAL_MODULES"):
        raise InvalidInput(f"trainer.v1.trainer_mode must be one of {', '.join(MODES)}, got {mode!r}")


def _refuse_without_manager(config: Mapping[str, Any]) -> None:
    name = config["reward"]["reward_manager"]["name"]
    if config.get(SECTION):
        raise InvalidInput(
            f"settings under rewardflow need reward.reward_manager.name=rewardflow, got {name!r} and "
            f"{', '.join(config[SECTION])}"
        )
    key = config["data"].get("reward_fn_key", "data_source")
    if key != "data_source":
        raise InvalidInput(f"verl's own reward managers ignore data.reward_fn_key, got {key!r}")


def _reason(error: BaseException) -> str:
    cause = error.__cause__
    return " ".join(str(error).split()) + (f" ({' '.join(str(cause).split())})" if cause else "")
