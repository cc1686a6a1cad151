"""Translates a user's command line into one that verl and this adapter honour.

Always true: nothing is dropped in silence. A word is kept, or rewritten with a note, or refused with a reason. The
translation knows the settings of the recipe that this project began as (`recipe/async_reward_agent` of verl): some have
new names in verl, and others verl accepts and ignores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rewardflow.adapters.verl.launch.overrides import VerlOverride, quoted
from rewardflow.adapters.verl.settings import NAMES, SECTION
from rewardflow.errors import InvalidInput
from rewardflow.reward.settings import check_names
from rewardflow.settings.reward_shape import placed

VERL_CONFIG = "pkg://verl.trainer.config"
DEFAULT_CONFIG_NAME = "ppo_trainer"
MEGATRON_CONFIG_NAME = "ppo_megatron_trainer"
NOT_SET = "not set"  # the note's `before` for a word that was added


@dataclass(frozen=True, slots=True)
class TranslationNote:
    """Tells the user what became of a word."""

    before: str
    after: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.before} -> {self.after}" + (f" ({self.why})" if self.why else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """The arguments for verl's main. `config_path` is None for verl's own configuration."""

    overrides: tuple[str, ...]
    config_path: str | None = None
    config_name: str = DEFAULT_CONFIG_NAME
    notes: tuple[TranslationNote, ...] = ()

    def adding(self, word: str, why: str) -> CommandLine:
        """Adds a word that the user left out."""
        return replace(
            self, overrides=(word, *self.overrides), notes=(*self.notes, TranslationNote(NOT_SET, word, why))
        )

    def leaving_out(self, word: str) -> CommandLine:
        """Removes a word that was added for the user."""
        return replace(
            self,
            overrides=tuple(other for other in self.overrides if other != word),
            notes=tuple(note for note in self.notes if note.after != word),
        )

    def words(self) -> list[str]:
        options = [f"--config-name={self.config_name}"]
        if self.config_path is not None:
            options.append(f"--config-path={self.config_path}")
        return [*options, *self.overrides]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The words that replace one of the user's, and why."""

    words: tuple[str, ...]
    why: str = ""


def translate(
    words: Iterable[str], *, config_path: str | None = None, config_name: str | None = None, folder: Path | None = None
) -> CommandLine:
    """Translates the command line. Relative paths of rewards start in `folder`."""
    given = [VerlOverride.parse(word) for word in words]
    folder = folder or Path.cwd()
    name, engine, notes = _config_name(config_name, given)
    path, more_words, path_notes = _config_path(config_path, folder)
    notes += path_notes
    kept: list[str] = []
    for override in given:
        rewritten = _rewrite(override, folder)
        if rewritten is None:
            kept.append(str(override))
        else:
            kept += rewritten.words
            notes.append(TranslationNote(str(override), " ".join(rewritten.words) or "nothing", rewritten.why))
    added = [*more_words, *engine, *_missing_switches(kept)]
    notes += [TranslationNote(NOT_SET, word) for word in _missing_switches(kept)]
    return CommandLine(overrides=(*added, *kept), config_path=path, config_name=name, notes=tuple(notes))


# -- single words ------------------------------------------------------------------------------------------------


def _rewrite(override: VerlOverride, folder: Path) -> Rewritten | None:
    """Translates one word. None keeps it as it is."""
    key = override.key
    if override.mark == "~":
        return None
    rewrite = _RECIPE.get(key)
    if rewrite is not None:
        return rewrite(override)
    if key in _REWARD_FILE:
        return _reward_file(override, folder)
    if key.startswith(f"{SECTION}."):
        return _own_setting(override, folder)
    if key.startswith("custom_reward_function."):
        return Rewritten((str(VerlOverride(f"reward.{key}", override.value, "+")),), "its name in verl 0.9")
    for old, new in _IGNORED_BY_VERL.items():
        if key == old or key.startswith(f"{old}."):
            moved = f"{new}{key[len(old) :]}"
            raise InvalidInput(f"verl accepts {key} and ignores it; its place is {moved}, got {override}")
    if key == "trainer.use_v1" and not override.is_true():
        raise InvalidInput(f"rewardflow is a mode of verl's v1 trainer, got {override}")
    return None


def _own_setting(override: VerlOverride, folder: Path) -> Rewritten | None:
    name = override.key.removeprefix(f"{SECTION}.").partition(".")[0]
    check_names({name: None}, NAMES)
    value = override.value
    if override.key == f"{SECTION}.reward" and isinstance(place := placed(override.text, folder), str):
        value = quoted(place)
    word = str(VerlOverride(override.key, value, "++"))
    return None if word == str(override) else Rewritten((word,), "verl's configuration has no such section yet")


def _reward_file(override: VerlOverride, folder: Path) -> Rewritten | None:
    """Makes the path of the reward's file absolute: Ray's processes may run in another folder."""
    is_marked = "://" in override.text  # a module, or a file with its absolute path
    place = override.text if is_marked else str(placed(override.text, folder))
    if place == override.text and override.key == _REWARD_FILE[0]:
        return None
    why = "absolute path" if override.key == _REWARD_FILE[0] else "verl ignores the old name"
    return Rewritten(
        (str(VerlOverride(_REWARD_FILE[0], quoted(place), "" if override.mark == "+" else override.mark)),), why
    )


def _renamed_to(key: str, why: str = "", *, mark: str = "") -> Callable[[VerlOverride], Rewritten]:
    return lambda override: Rewritten((str(VerlOverride(key, override.value, mark)),), why)


def _manager(override: VerlOverride) -> Rewritten:
    if override.text not in ("batch", "rewardflow"):
        raise InvalidInput(
            f"reward_model.reward_manager must be batch, which the recipe had, got {override.text!r}; to keep one of "
            f"verl's own managers, set reward.reward_manager.name={override.text}"
        )
    return Rewritten(("reward.reward_manager.name=rewardflow",), "verl ignores the old name")


def _launched_async(override: VerlOverride) -> Rewritten:
    staleness = 1 if override.is_true() else 0
    return Rewritten((f"++{SECTION}.max_staleness={staleness}",), "the recipe generates a step while one is judged")


def _pipeline(override: VerlOverride) -> Rewritten:
    stream = "mini_batch" if override.is_true() else "batch"
    return Rewritten((f"++{SECTION}.stream={stream}",))


def _loss_mode(override: VerlOverride) -> Rewritten | None:
    if override.text != "decoupled":
        return None
    words = (str(override), "actor_rollout_ref.rollout.calculate_log_probs=True")
    return Rewritten(words, "the loss compares with the log-probs of the rollout")


_REWARD_FILE = ("reward.custom_reward_function.path", "custom_reward_function.path")  # verl's name, and its old name
_WEIGHT_CAP = _renamed_to(f"{SECTION}.behaviour_weight_cap", mark="++")
_RECIPE: Mapping[str, Callable[[VerlOverride], Rewritten | None]] = {
    "custom_reward_function.name": _renamed_to("reward.custom_reward_function.name", "verl ignores the old name"),
    "reward_model.reward_manager": _manager,
    "reward_model.launch_reward_fn_async": _launched_async,
    "max_concurrency": _renamed_to(f"{SECTION}.max_concurrency", mark="++"),
    "mini_batch_pipeline": _pipeline,
    "update_pipeline": _pipeline,
    "actor_rollout_ref.actor.policy_loss.loss_mode": _loss_mode,
    "actor_rollout_ref.actor.policy_loss.behav_imp_weight_cap": _WEIGHT_CAP,
    "actor_rollout_ref.actor.behav_imp_weight_cap": _WEIGHT_CAP,
}

# Sections that verl's configuration still has and its v1 trainer ignores, and where their settings are now.
_IGNORED_BY_VERL: Mapping[str, str] = {
    "reward_model.num_workers": "reward.num_workers",
    "reward_model.model.path": "reward.reward_model.model_path",
    "reward_model.reward_kwargs": "reward.reward_kwargs",
    "reward_model.reward_loop_source": "reward.reward_manager.source",
    "reward_model.reward_loop_module_path": "reward.reward_manager.module.path",
    "reward_model.reward_loop_class_name": "reward.reward_manager.module.name",
    "reward_model": "reward.reward_model",
    "sandbox_fusion": "reward.sandbox_fusion",
}


# -- the whole line ------------------------------------------------------------------------------------------------


def _config_name(name: str | None, given: Sequence[VerlOverride]) -> tuple[str, list[str], list[TranslationNote]]:
    """Chooses verl's one configuration and an engine: verl 0.9 keeps a second one for old command lines only."""
    plain = (name or DEFAULT_CONFIG_NAME).removesuffix(".yaml")
    is_chosen = any(override.key == "model_engine" for override in given)
    is_megatron = any(
        override.key == "actor_rollout_ref.actor.strategy" and override.text == "megatron" for override in given
    )
    engine = "model_engine=megatron"
    if plain == MEGATRON_CONFIG_NAME:
        notes = [TranslationNote(f"--config-name={name}", engine, "verl has one configuration and a choice of engine")]
        return DEFAULT_CONFIG_NAME, [] if is_chosen else [engine], notes
    if is_megatron and not is_chosen and plain == DEFAULT_CONFIG_NAME:
        return plain, [engine], [TranslationNote("actor_rollout_ref.actor.strategy=megatron", f"and {engine}")]
    return plain, [], []


def _config_path(path: str | None, folder: Path) -> tuple[str | None, list[str], list[TranslationNote]]:
    """Takes a path into a checkout of verl for verl's own configuration. Other folders may build on verl's."""
    if path is None:
        return None, [], []
    if Path(path).parts[-3:] == ("verl", "trainer", "config"):
        return None, [], [TranslationNote(f"--config-path={path}", "the installed verl's own")]
    place = os.path.join(folder, os.path.expanduser(path))
    if not os.path.isdir(place):
        raise InvalidInput(f"--config-path must be a folder of configurations, got {path!r}")
    return place, [f"hydra.searchpath=[{VERL_CONFIG}]"], []


SWITCHES = ("reward.reward_manager.name=rewardflow", "trainer.v1.trainer_mode=rewardflow")


def _missing_switches(words: Sequence[str]) -> list[str]:
    """Returns the settings that switch rewardflow on, except those that the user set."""
    keys = {VerlOverride.parse(word).key for word in words}
    return [word for word in SWITCHES if VerlOverride.parse(word).key not in keys]
