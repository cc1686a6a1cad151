"""On a machine without an accelerator nothing is asked for; what a GPU does with it nobody has run yet."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from rewardflow.policy.accelerator import (
    accelerator,
    holds_float64,
    memory_bytes,
    on_device,
    release_cached_memory,
    use_device,
    wait_for_device,
)

# What torch.accelerator has had since torch 2.6. Without an accelerator no call shows that a newer name is missing.
_SINCE_TORCH_2_6 = {"current_accelerator", "is_available", "set_device_index", "synchronize"}


@pytest.mark.skipif(torch.accelerator.is_available(), reason="looks at a machine without an accelerator")
def test_without_an_accelerator_there_is_nothing_to_choose_wait_for_or_free() -> None:
    assert accelerator() is None
    use_device(torch.device("cpu"))
    use_device(torch.device("cuda"))  # without a number, the current device stays
    with on_device(torch.device("cpu")), on_device(torch.device("cuda")):
        wait_for_device()
    release_cached_memory()
    assert memory_bytes(torch.device("cuda")) is None
    assert memory_bytes(torch.device("mps")) is None
    with pytest.raises(RuntimeError):
        use_device(torch.device("cuda:1"))


def test_an_accelerator_is_asked_only_for_what_older_releases_of_torch_have_too() -> None:
    root = Path(__file__).resolve().parents[2]
    used = {
        name
        for path in (root / "src").rglob("*.py")
        for name in re.findall(r"torch\.accelerator\.(\w+)", path.read_text())
    }
    assert used == used & _SINCE_TORCH_2_6
    assert used


def test_the_modules_of_devices_have_what_is_asked_of_them() -> None:
    for name in ("device", "empty_cache", "mem_get_info"):
        assert callable(getattr(torch.get_device_module("cuda"), name))


def test_a_device_that_cannot_take_sums_in_float64_is_known() -> None:
    assert holds_float64(torch.device("cpu"))
    assert holds_float64(torch.device("meta"))
    assert not holds_float64(torch.device("mps"))  # not here, and on a Mac it has none
