"""A policy that has opinions: with random weights as they come, every token would be about as probable as any other."""

from __future__ import annotations

import pytest
import torch

from rewardflow.policy.load_policy import Policy, load_policy
from rewardflow.settings.run_settings import PolicySettings


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def policy() -> Policy:
    loaded = load_policy(PolicySettings(tiny_hidden=32), seed=1)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            if parameter.ndim == 2:
                parameter *= 1.5
    return loaded
