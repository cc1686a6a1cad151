"""Checks that the installed verl is a release that this adapter was tested with.

Always true: the check does not import verl, which takes many seconds; the launcher makes it before anything starts, and
every part of the adapter repeats it when it is made, because verl's own main may make it too.
"""

from __future__ import annotations

import importlib.metadata

from rewardflow.errors import InvalidInput

TESTED = ("0.9.1",)
INSTALL = "verl==0.9.1"
SETTING = "rewardflow.allow_untested_verl"


def installed_version() -> str:
    """Returns the installed verl's version. Without verl, raises an error that says what to install."""
    try:
        return importlib.metadata.version("verl")
    except importlib.metadata.PackageNotFoundError:
        raise InvalidInput(f"verl must be installed beside rewardflow: pip install '{INSTALL}', got none") from None


def is_tested(version: str) -> bool:
    return version.partition("+")[0] in TESTED


def check_version(version: str, *, allow_untested: bool = False) -> None:
    """Refuses a release whose internals may differ from those that this adapter uses."""
    if not is_tested(version) and not allow_untested:
        raise InvalidInput(
            f"rewardflow was tested inside verl {', '.join(TESTED)}, got verl {version}: install '{INSTALL}', or try "
            f"this one with {SETTING}=true"
        )
