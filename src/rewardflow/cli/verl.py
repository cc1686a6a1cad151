"""`rewardflow verl`: starts verl's own trainer with rewardflow's agent and schedules.

Always true: before the start the command shows how it changed the given settings; a setting that verl and rewardflow
would both ignore is an error.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from rewardflow.adapters.verl.contact import drift
from rewardflow.adapters.verl.launch.composition import check, completed, defaults_of, differences, verl_package
from rewardflow.adapters.verl.launch.main import launch
from rewardflow.adapters.verl.launch.overrides import VerlOverride
from rewardflow.adapters.verl.launch.reward_check import check_reward
from rewardflow.adapters.verl.launch.rewriting import TranslationNote
from rewardflow.adapters.verl.launch.translation import translate
from rewardflow.adapters.verl.launch.unread_settings import without_effect
from rewardflow.adapters.verl.versions import SETTING, check_version, installed_version, is_tested
from rewardflow.cli.display import stderr_console, stdout_console
from rewardflow.cli.safe_text import safe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Starts verl's own main with the reward manager and the trainer mode `rewardflow` switched on. Takes the\n"
        "settings of verl, and those of its recipe async_reward_agent, which it translates."
    )
    parser.add_argument(
        "settings", nargs="*", metavar="KEY=VALUE", help="verl's settings; rewardflow's are rewardflow.*"
    )
    parser.add_argument(
        "--config-path", metavar="FOLDER", help="a folder of your own configurations, instead of verl's"
    )
    parser.add_argument("--config-name", metavar="NAME", help="the configuration in that folder (ppo_trainer)")
    parser.add_argument(
        "--dry-run", action="store_true", help="show how the run differs from verl's defaults, and stop"
    )


def run(args: argparse.Namespace) -> int:
    version = installed_version()
    check_version(version, allow_untested=_allows_untested(args.settings))
    translated = translate(args.settings, config_path=args.config_path, config_name=args.config_name)
    command, config = completed(translated)
    default_config = defaults_of(command)
    settings = check(command, config, default_config)
    stderr_console().print(f"verl {version}, with rewardflow", soft_wrap=True)
    _print_notes([*command.notes, *without_effect(config, default_config), *_drift_notes(version)])
    check_reward(settings)
    if args.dry_run:
        for key, default, value in differences(config, default_config):
            stdout_console().print(f"{key}: {_shown(default)} -> {_shown(value)}", soft_wrap=True)
        return 0
    launch(command)
    return 0


def _allows_untested(words: Sequence[str]) -> bool:
    """Whether the user wants a release of verl that was not tested: composing its configuration may fail already."""
    overrides = [VerlOverride.parse(word) for word in words]
    return any(override.key == SETTING and override.is_true() for override in overrides)


def _drift_notes(version: str) -> list[TranslationNote]:
    """Says which pieces of an untested verl differ from the tested one's."""
    if is_tested(version):
        return []
    return [TranslationNote(f"verl {version}", piece, "rewardflow uses it") for piece in drift(verl_package())]


def _print_notes(notes: Sequence[TranslationNote]) -> None:
    """Prints what became of the user's words and of the recipe's defaults, in one table."""
    from rich.table import Table

    if not notes:
        return
    table = Table("given", "this run", "why", box=None, padding=(0, 1), pad_edge=False)
    for column in table.columns:
        column.overflow = "fold"
    for note in notes:
        table.add_row(safe(note.before), safe(note.after), safe(note.why))
    stderr_console().print(table)


def _shown(value: Any) -> str:
    return "none" if value is None else safe(str(value))
