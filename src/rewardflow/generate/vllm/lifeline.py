"""Ends vLLM's processes when their owner process has ended, in whatever way: also by kill -9.

Always true: a process that inherits an owner's number ends with that owner. vLLM ends its processes when it is shut
down, but those of an owner that was killed would go on and keep their memory.
"""

from __future__ import annotations

import os
import select
import signal
import threading

_OWNER = "REWARDFLOW_VLLM_OWNER"  # the process id of the owner, which vLLM's processes inherit


def own_what_follows() -> None:
    """Makes this process the owner of those that it starts."""
    os.environ[_OWNER] = str(os.getpid())


def end_with_owner() -> None:
    """Watches the owner, in a process of vLLM. Does nothing if the system cannot report the end of a process."""
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
    """Ends at once: no process is left that needs an orderly end."""
    os.kill(os.getpid(), signal.SIGKILL)
