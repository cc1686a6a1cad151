"""The random numbers of torch: where its generators stand, on the CPU and on one device.

Always true: after `put_back`, torch draws what it would have drawn after `taken`. Nothing else of a run draws from a
generator that has a state: sampling and the order of prompts are functions of the seed.
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
    """A device of another kind than the one before keeps its own."""
    torch.set_rng_state(states[_CPU])
    if device.type != _CPU and device.type in states:
        torch.get_device_module(device).set_rng_state(states[device.type], device)
