"""Forward passes that only look: log-probs that the loss compares with.

Always true: what goes through the model together depends on the lengths alone, so a pass gives the same numbers
whatever the verdicts did meanwhile.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from rewardflow.flow.device import Device
from rewardflow.flow.micro_batches import split_by_tokens
from rewardflow.flow.open_step import OpenStep
from rewardflow.flow.parts import Parts
from rewardflow.flow.records import num_tokens

Kind = Literal["old", "reference", "behaviour"]


async def take_log_probs(kind: Kind, parts: Parts, device: Device, open_step: OpenStep) -> None:
    """Of every rollout of the step that has none of this kind yet, a micro-batch at a time."""
    rollouts = [rollout for rollout in open_step.rollouts() if getattr(open_step.log_probs_of(rollout), kind) is None]
    for part in split_by_tokens([num_tokens(rollout) for rollout in rollouts], parts.micro_batch_tokens):
        async with device.lease("log_probs", open_step.step):
            taken = await parts.trainer.log_probs(rollouts[part], "reference" if kind == "reference" else "policy")
        for rollout, log_probs in zip(rollouts[part], taken, strict=True):
            open_step.set_log_probs(rollout, replace(open_step.log_probs_of(rollout), **{kind: log_probs}))
