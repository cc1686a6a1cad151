"""What homes in this process have in common, whatever they compute: one device thread, and what they open.

Always true: the thread runs from entering to leaving; what was put on the stack is closed before it, in reverse order.
"""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Self

from rewardflow.flow.device_thread import DeviceThread
from rewardflow.settings.run_settings import RunSettings


class DeviceHome:
    """A home to be: whoever derives from it loads on the thread, and puts what it opens on the stack."""

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self._thread = DeviceThread("device")
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._stack.enter_context(self._thread)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()
