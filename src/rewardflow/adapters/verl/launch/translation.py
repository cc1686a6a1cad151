"""Translates a user's command line into one that verl and this adapter honour.

Always true: nothing is dropped in silence. A word is kept, or rewritten with a note, or refused with a reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rewardflow.adapters.verl.launch.managers import take_over_manager
from rewardflow.adapters.verl.launch.old_words import rewrite_old
from rewardflow.adapters.verl.launch.overrides import VerlOverride, quoted
from rewardflow.adapters.verl.launch.recipe import RECIPE_WORDS, is_recipes, recipe_defaults, recipe_differences
from rewardflow.adapters.verl.launch.rewriting import NOT_SET, NOTHING, Rewritten, TranslationNote
from rewardflow.adapters.verl.settings import NAMES, SECTION
from rewardflow.errors import InvalidInput
from rewardflow.reward.settings import check_names
from rewardflow.settings.reward_shape import placed

VERL_CONFIG = "pkg://verl.trainer.config"
DEFAULT_CONFIG_NAME = "ppo_trainer"
MEGATRON_CONFIG_NAME = "ppo_megatron_trainer"


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


def translate(
    words: Iterable[str], *, config_path: str | None = None, config_name: str | None = None, folder: Path | None = None
) -> CommandLine:
    """Translates the command line. Relative paths of rewards start in `folder`."""
    given = [VerlOverride.parse(word) for word in words]
    folder = folder or Path.cwd()
    name, engine, notes = _config_name(config_name, given)
    path, more_words, path_notes = _config_path(config_path, folder)
    notes += path_notes
    kept, word_notes = _rewritten(given, folder)
    kept, manager_notes = take_over_manager(kept)
    notes += _joined(word_notes, manager_notes)
    if is_recipes(given):
        defaults = recipe_defaults(kept)
        kept += [note.after for note in defaults]
        notes += defaults + recipe_differences(kept)
    switches = _missing_switches(kept)
    notes += [TranslationNote(NOT_SET, word) for word in switches]
    return CommandLine(
        overrides=(*more_words, *engine, *switches, *kept), config_path=path, config_name=name, notes=tuple(notes)
    )


# -- single words ------------------------------------------------------------------------------------------------


def _rewritten(given: Iterable[VerlOverride], folder: Path) -> tuple[list[str], list[TranslationNote]]:
    """Translates each word by itself."""
    kept: list[str] = []
    notes: list[TranslationNote] = []
    for override in given:
        rewritten = _rewrite(override, folder)
        if rewritten is None:
            kept.append(str(override))
        else:
            kept += rewritten.words
            notes.append(TranslationNote(str(override), " ".join(rewritten.words) or NOTHING, rewritten.why))
    return kept, notes


def _rewrite(override: VerlOverride, folder: Path) -> Rewritten | None:
    """Translates one word. None keeps it as it is."""
    key = override.key
    if override.mark == "~":
        return None
    rewrite = RECIPE_WORDS.get(key)
    if rewrite is not None:
        return rewrite(override)
    if key in _REWARD_FILE:
        return _reward_file(override, folder)
    if key.startswith(f"{SECTION}."):
        return _own_setting(override, folder)
    if key == "trainer.use_v1" and not override.is_true():
        raise InvalidInput(f"rewardflow is a mode of verl's v1 trainer, got {override}")
    return rewrite_old(override)


def _own_setting(override: VerlOverride, folder: Path) -> Rewritten | None:
    name = override.key.removeprefix(f"{SECTION}.").partition(".")[0]
    check_names({name: None}, NAMES)
    value = override.value
    is_known = not override.has_reference()
    if override.key == f"{SECTION}.reward" and is_known and isinstance(place := placed(override.text, folder), str):
        value = quoted(place)
    word = str(VerlOverride(override.key, value, "++"))
    return None if word == str(override) else Rewritten((word,), "verl's configuration has no such section yet")


def _reward_file(override: VerlOverride, folder: Path) -> Rewritten | None:
    """Makes the path of the reward's file absolute: Ray's processes may run in another folder."""
    # A module, a file with its absolute path, or a path that only the configuration knows stays as it is.
    stays = "://" in override.text or override.has_reference()
    place = override.text if stays else str(placed(override.text, folder))
    if place == override.text and override.key == _REWARD_FILE[0]:
        return None
    why = "absolute path" if override.key == _REWARD_FILE[0] else "verl ignores the old name"
    return Rewritten(
        (str(VerlOverride(_REWARD_FILE[0], quoted(place), "" if override.mark == "+" else override.mark)),), why
    )


_REWARD_FILE = ("reward.custom_reward_function.path", "custom_reward_function.path")  # verl's name, and its old name


def _joined(first: Sequence[TranslationNote], then: Sequence[TranslationNote]) -> list[TranslationNote]:
    """Joins the notes of two translations: a word that both changed has one note, from its first form to its last."""
    later = {note.before: note for note in then}
    joined = [replace(later[note.after], before=note.before) if note.after in later else note for note in first]
    changed = {note.after for note in first}
    return [*joined, *(note for note in then if note.before not in changed)]


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
    is_beside_verls_main = os.path.normpath(path) == "config"  # where Hydra looks for a relative path
    if is_beside_verls_main or Path(path).parts[-3:] == ("verl", "trainer", "config"):
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
