"""Asks the accelerator of this thread for what torch leaves to its user. Does nothing on a machine without one.

Always true: each function concerns the thread that calls it, because which device is current is per thread. Of
`torch.accelerator` the package uses only what torch 2.6 has; for the rest the device's own module (`torch.cuda`) has
been the same for years.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


def accelerator() -> torch.device | None:
    """Returns this machine's accelerator, or None if there is none that works."""
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None


def holds_float64(device: torch.device) -> bool:
    """Whether a device has numbers of 64 bits, in which sums are taken. Apple's GPUs have none."""
    try:
        torch.empty(0, dtype=torch.float64, device=device)
    except (TypeError, RuntimeError, AssertionError, NotImplementedError):  # torch says it in all these ways
        return False
    return True


def use_device(device: torch.device) -> None:
    """Makes a device the current one of this thread: libraries that are named no device take that one."""
    if device.type != "cpu" and device.index is not None:
        torch.accelerator.set_device_index(device.index)


@contextlib.contextmanager
def on_device(device: torch.device) -> Iterator[None]:
    """Makes a device the current one of this thread inside the block."""
    if device.type == "cpu" or device.index is None:
        yield
        return
    with torch.get_device_module(device).device(device.index):
        yield


def memory_bytes(device: torch.device) -> int | None:
    """Returns the memory that an accelerator has; None if it does not tell."""
    try:
        return int(torch.get_device_module(device).mem_get_info(device)[1])
    except (AttributeError, AssertionError, RuntimeError, NotImplementedError, ValueError):
        return None


def wait_for_device() -> None:
    """Returns when everything that was queued on the device, on any stream, has been computed."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def release_cached_memory() -> None:
    """Gives the driver back what torch's allocator keeps for later, so that other processes can have it."""
    wait_for_device()  # memory that a kernel still uses would stay
    if (device := accelerator()) is not None:
        torch.get_device_module(device).empty_cache()
