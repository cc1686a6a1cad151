"""Torch's threads, bounded for a while."""

from __future__ import annotations

import pytest
import torch

from rewardflow.policy.torch_threads import torch_threads


def test_torch_has_its_threads_again_afterwards_also_after_an_error() -> None:
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError), torch_threads(before + 1):
        1 / (before + 1 - torch.get_num_threads())
    with torch_threads(None):
        assert torch.get_num_threads() == before
    assert torch.get_num_threads() == before
