"""Makes a run wait at the end of a step while a file exists, so that somebody can look before it goes on.

Always true: the file is the whole state. Who removes it lets the run go on; a run that is resumed while it exists waits
again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from rewardflow.observe.private_file import write_private

logger = logging.getLogger(__name__)

_LOOK_S = 0.5


class PauseFile:
    """The file `PAUSED` of a run directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, reason: str) -> None:
        """Makes the run wait after the step that it is in."""
        write_private(self.path, f"{reason}\n\nRemove this file, and the run goes on.\n".encode())

    async def wait_until_removed(self, is_over: Callable[[], bool]) -> None:
        """Returns at once if there is no file, and soon if `is_over` says that the run is to end."""
        if not self._is_there():
            return
        logger.warning("PAUSED: the run waits until %s is removed; the file says why", self.path)
        while not is_over():
            await asyncio.sleep(_LOOK_S)  # nothing tells when another program removes a file
            if not self._is_there():
                logger.warning("the run goes on: %s was removed", self.path)
                return

    def _is_there(self) -> bool:
        return self.path.exists()
