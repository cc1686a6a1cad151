"""verl's own main, with rewardflow switched on.

Always true: it is verl's function that runs, on the configuration that was looked through; where the plug-in could not
load in verl's processes, nothing is started.
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


def let_verl_load_us(environment: dict[str, str] | os._Environ[str]) -> None:
    """verl loads entry points of installed packages; naming the module also serves a source tree on the path."""
    policy = environment.get(_PLUGINS, "auto").strip().lower()
    if policy != "auto" and "rewardflow" not in [name.strip() for name in policy.split(",")]:
        raise InvalidInput(f"{_PLUGINS} must let verl load the plug-in rewardflow, got {policy!r}")
    modules = [name for name in environment.get(_MODULES, "").split(",") if name]
    if PLUGIN not in modules:
        environment[_MODULES] = ",".join([*modules, PLUGIN])


def launch(command: CommandLine) -> None:
    """Train. Returns when verl's main does."""
    let_verl_load_us(os.environ)
    with _arguments(["verl", *command.words()]):
        import_module("verl.trainer.main_ppo").main()


@contextmanager
def _arguments(words: list[str]) -> Iterator[None]:
    """verl's main takes its settings from the command line only."""
    before = sys.argv
    sys.argv = words
    try:
        yield
    finally:
        sys.argv = before
