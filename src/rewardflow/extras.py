"""Imports modules that only an optional extra of this package installs, and names the command that installs one.

Always true: an error about a missing module names the module and a command that works where rewardflow runs: in a
clone of the repository it installs the clone again with the extra, elsewhere the package. The command uses the running
interpreter, so that the extra lands in its environment.
"""

from __future__ import annotations

import importlib
import shlex
import sys
from pathlib import Path
from typing import Any, Final

from rewardflow.errors import InvalidInput

_PACKAGE: Final = Path(__file__).resolve().parent


def import_extra(module: str, extra: str, user: str) -> Any:
    """Imports and returns the module; the error message says that `user` needs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise InvalidInput(f"{user} needs {package}: {install_command(extra)} ({error.name} is missing)") from error


def install_command(extra: str, package: Path = _PACKAGE) -> str:
    """Returns the command that adds an extra of rewardflow to this environment. `package` is where rewardflow lies."""
    clone = package.parent.parent
    if (clone / "pyproject.toml").is_file() and package.parent.name == "src":
        constraints = ["-c", str(clone / "constraints.txt")] if (clone / "constraints.txt").is_file() else []
        return pip_install(*constraints, "-e", f"{clone}[{extra}]")
    return pip_install(f"rewardflow[{extra}]")


def pip_install(*arguments: str) -> str:
    """Returns the command that installs something for the interpreter that runs now."""
    return shlex.join([sys.executable or "python", "-m", "pip", "install", *arguments])
