"""Measures the most memory that a run has used."""

from __future__ import annotations

import sys
from typing import Any

_RSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024


def peak_memory_bytes(device: Any) -> int | None:
    """Returns the peak since the process began: of torch on a GPU, of the resident set on the CPU."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated(device))
    if device.type != "cpu":
        return None
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT_BYTES
