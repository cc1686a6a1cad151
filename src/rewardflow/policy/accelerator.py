"""Asks the accelerator of this thread for what torch leaves to its user. Does nothing on a machine without one.

Always true: each function concerns the thread that calls it, because which device is current is per thread.
"""

from __future__ import annotations

import torch


def use_device(device: torch.device) -> None:
    """Makes a device the current one of this thread: libraries that are named no device take that one."""
    if device.type != "cpu" and device.index is not None:
        torch.accelerator.set_device_index(device.index)


def wait_for_device() -> None:
    """Returns when everything that was queued on the device, on any stream, has been computed."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def release_cached_memory() -> None:
    """Gives the driver back what torch's allocator keeps for later, so that other processes can have it."""
    wait_for_device()  # memory that a kernel still uses would stay
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()
