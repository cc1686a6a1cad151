"""On a machine without an accelerator nothing is asked for; what a GPU does with it nobody has run yet."""

from __future__ import annotations

import pytest
import torch

from rewardflow.policy.accelerator import release_cached_memory, use_device, wait_for_device


@pytest.mark.skipif(torch.accelerator.is_available(), reason="looks at a machine without an accelerator")
def test_without_an_accelerator_there_is_nothing_to_choose_wait_for_or_free() -> None:
    use_device(torch.device("cpu"))
    use_device(torch.device("cuda"))  # without a number, the current device stays
    wait_for_device()
    release_cached_memory()
    with pytest.raises(RuntimeError):
        use_device(torch.device("cuda:1"))
