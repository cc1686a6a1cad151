"""Computes log-probs and values before training: those that the loss compares with, and the critic's.

Always true: the rollouts that share a forward pass depend only on their lengths, so a pass gives the same numbers
whatever the verdicts did meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from rewardflow.flow.device import Device
from rewardflow.flow.flow_parts import FlowParts
from rewardflow.flow.micro_batches import split_by_tokens
from rewardflow.flow.open_step import OpenStep
from rewardflow.flow.records import num_tokens
from rewardflow.types import Rollout

Kind = Literal["old", "reference", "behaviour", "values"]


async def precompute_before_updates(parts: FlowParts, device: Device, open_step: OpenStep) -> None:
    """Computes the figures that need the weights before the step's first update: old log-probs and values."""
    if parts.takes_old:
        await precompute("old", parts, device, open_step)
    if parts.critic is not None:
        await precompute("values", parts, device, open_step)


async def precompute(kind: Kind, parts: FlowParts, device: Device, open_step: OpenStep) -> None:
    """Computes one kind for every trainable rollout that lacks it, one micro-batch at a time."""
    rollouts = [one for one in open_step.trainable() if getattr(open_step.precomputed_of(one), kind) is None]
    for part in split_by_tokens([num_tokens(rollout) for rollout in rollouts], parts.micro_batch_tokens):
        async with device.lease("log_probs", open_step.step):
            precomputed = await _compute(kind, parts, rollouts[part])
        for rollout, one in zip(rollouts[part], precomputed, strict=True):
            open_step.set_precomputed(rollout, replace(open_step.precomputed_of(rollout), **{kind: one}))


async def _compute(kind: Kind, parts: FlowParts, rollouts: Sequence[Rollout]) -> Sequence[object]:
    if kind == "values":
        assert parts.critic is not None
        return await parts.critic.values(rollouts)
    return await parts.trainer.log_probs(rollouts, "reference" if kind == "reference" else "policy")
