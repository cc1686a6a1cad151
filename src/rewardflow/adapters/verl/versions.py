"""Checks that the installed verl is a release that this adapter supports.

Always true: the check does not import verl, which takes many seconds, and runs before anything starts.
"""

from __future__ import annotations

import importlib.metadata
import re

from rewardflow.errors import InvalidInput

OLDEST = (0, 9, 1)
FIRST_UNKNOWN = (0, 10, 0)
RANGE = "verl>=0.9.1,<0.10"


def installed_version() -> str:
    """Returns the installed verl's version. Without verl, raises an error that says what to install."""
    try:
        return importlib.metadata.version("verl")
    except importlib.metadata.PackageNotFoundError:
        raise InvalidInput(f"verl must be installed beside rewardflow: pip install '{RANGE}', got none") from None


def check_version(version: str) -> None:
    """Refuses a release whose internals may differ from those that this adapter wraps."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    release = tuple(int(part or 0) for part in match.groups()) if match else ()
    is_known = OLDEST <= release < FIRST_UNKNOWN
    if not is_known or re.search(r"(a|b|rc|dev)\d*", version):
        raise InvalidInput(f"rewardflow works inside releases of {RANGE}, got verl {version}")
