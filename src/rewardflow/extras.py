"""Imports modules that only an optional extra of this package installs.

Always true: an error about a missing module names the module and the command that installs it.
"""

from __future__ import annotations

import importlib
from typing import Any

from rewardflow.errors import InvalidInput


def import_extra(module: str, extra: str, user: str) -> Any:
    """Imports and returns the module; the error message says that `user` needs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise InvalidInput(
            f"{user} needs {package}: pip install 'rewardflow[{extra}]' ({error.name} is missing)"
        ) from error
