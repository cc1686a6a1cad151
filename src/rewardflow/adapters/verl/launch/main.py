"""Starts verl's own main with the plug-in enabled.

Always true: verl's own function runs, on the configuration that was checked; if verl's processes would not load the
plug-in, nothing starts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from rewardflow.adapters.verl.launch.translation import CommandLine
from rewardflow.errors import InvalidInput

PLUGIN = "rewardflow.adapters.verl.plugin"
_MODULES = "VERL_USE_EXTERNAL_MODULES"
_PLUGINS = "VERL_USE_EXTERNAL_PLUGINS"


def enable_plugin(environment: dict[str, str] | os._Environ[str]) -> None:
    """Names the plug-in's module to verl, which by itself finds only the entry points of installed packages."""
    policy = environment.get(_PLUGINS, "auto").strip().lower()
    if policy != "auto" and "rewardflow" not in [name.strip() for name in policy.split(",")]:
        raise InvalidInput(f"{_PLUGINS} must let verl load the plug-in rewardflow, got {policy!r}")
    modules = [name for name in environment.get(_MODULES, "").split(",") if name]
    if PLUGIN not in modules:
        environment[_MODULES] = ",".join([*modules, PLUGIN])


def launch(command: CommandLine) -> None:
    """Trains. Returns when verl's main returns."""
    enable_plugin(os.environ)
    with _arguments(["verl", *command.words()]):
        import_module("verl.trainer.main_ppo").main()


@contextmanager
def _arguments(words: list[str]) -> Iterator[None]:
    """Sets `sys.argv` for a while: verl's main takes its settings from the command line only."""
    before = sys.argv
    sys.argv = words
    try:
        yield
    finally:
        sys.argv = before
