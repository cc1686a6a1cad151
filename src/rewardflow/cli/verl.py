"""`rewardflow verl`: starts verl's own trainer with rewardflow's agent and schedules.

Always true: before the start the command shows how it changed the given settings; a setting that verl and rewardflow
would both ignore is an error.
"""

from __future__ import annotations

import argparse
from typing import Any

from rewardflow.adapters.verl.launch.composition import check, completed, defaults_of, differences
from rewardflow.adapters.verl.launch.main import launch
from rewardflow.adapters.verl.launch.reward_check import check_reward
from rewardflow.adapters.verl.launch.translation import translate
from rewardflow.adapters.verl.versions import check_version, installed_version
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
    check_version(version)
    translated = translate(args.settings, config_path=args.config_path, config_name=args.config_name)
    command, config = completed(translated)
    console = stderr_console()
    console.print(f"verl {version}, with rewardflow", soft_wrap=True)
    for note in command.notes:
        console.print(f"  {safe(str(note))}", soft_wrap=True)
    default_config = defaults_of(command)
    check_reward(check(command, config, default_config))
    if args.dry_run:
        for key, default, value in differences(config, default_config):
            stdout_console().print(f"{key}: {_shown(default)} -> {_shown(value)}", soft_wrap=True)
        return 0
    launch(command)
    return 0


def _shown(value: Any) -> str:
    return "none" if value is None else safe(str(value))
