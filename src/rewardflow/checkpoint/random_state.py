"""Saves and restores torch's random number generators, on the CPU and on one device.

Always true: after `put_back`, torch draws what it would have drawn after `taken`. Nothing else in a run draws from a
generator with a state: sampling and the order of prompts are functions of the seed.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

_CPU = "cpu"


def taken(device: torch.device) -> dict[str, Tensor]:
    states = {_CPU: torch.get_rng_state()}
    if device.type != _CPU:
        states[device.type] = torch.get_device_module(device).get_rng_state(device)
    return states


def put_back(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Restores the generators. A device of another kind than the saved one keeps its own state."""
    torch.set_rng_state(states[_CPU])
    if device.type != _CPU and device.type in states:
        torch.get_device_module(device).set_rng_state(states[device.type], device)
