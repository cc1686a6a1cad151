"""Importing what only an extra of this package brings.

Always true: what is not installed is named together with the command that installs it.
"""

from __future__ import annotations

import importlib
from typing import Any

from rewardflow.errors import InvalidInput


def import_extra(module: str, extra: str, user: str) -> Any:
    """The module; `user` says in the message who needs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise InvalidInput(
            f"{user} needs {package}: pip install 'rewardflow[{extra}]' ({error.name} is missing)"
        ) from error
