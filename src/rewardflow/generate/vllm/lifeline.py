"""Ends a process of vLLM when the one that it works for is gone, however that went: also by kill -9.

Always true: who is told whom it works for ends with that process. vLLM ends its processes where it is shut down, but
those of an owner that was killed would go on and keep their memory.
"""

from __future__ import annotations

import os
import select
import signal
import threading

_OWNER = "REWARDFLOW_VLLM_OWNER"  # its number as a process, which vLLM's processes inherit


def own_what_follows() -> None:
    """Processes that this one starts work for it."""
    os.environ[_OWNER] = str(os.getpid())


def end_with_owner() -> None:
    """In a process that was started for another; nothing where the system cannot tell that a process has ended."""
    owner = os.environ.get(_OWNER)
    if owner is None or not hasattr(os, "pidfd_open"):
        return
    try:
        handle = os.pidfd_open(int(owner))
    except ProcessLookupError:
        _end()
    else:
        threading.Thread(target=_outlive_not, args=(handle,), name="rewardflow-lifeline", daemon=True).start()


def _outlive_not(handle: int) -> None:
    waiting = select.poll()
    waiting.register(handle, select.POLLIN)
    waiting.poll()
    _end()


def _end() -> None:
    """At once: nobody is left who could use an orderly end."""
    os.kill(os.getpid(), signal.SIGKILL)
