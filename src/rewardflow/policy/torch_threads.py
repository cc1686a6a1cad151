"""Bounds the threads that torch computes with.

Always true: afterwards torch has as many as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Lets torch use this many threads; None: as many as now. Small operations are slower with more than one."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
