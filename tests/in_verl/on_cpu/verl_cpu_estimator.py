"""An advantage estimator that writes down on which token each reward is, for a test to check."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from verl.trainer.ppo.core_algos import register_adv_est


@register_adv_est("recorded_rewards")
def recorded_rewards(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    with Path(os.environ["RECORDED_REWARDS"]).open("a") as file:
        for rewards, mask in zip(token_level_rewards, response_mask, strict=True):
            if mask.any():
                row = {"length": int(mask.sum()), "rewards": {int(i): float(rewards[i]) for i in rewards.nonzero()}}
                file.write(json.dumps(row) + "\n")
    advantages = token_level_rewards.sum(-1, keepdim=True) * response_mask
    return advantages, advantages
