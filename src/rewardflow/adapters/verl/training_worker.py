"""verl's training workers, for a step of several calls.

Always true: the learning rate moves when it is told to, once a step, and not with every call; what a loss divides by
counts the sequences that train, and not those that fill a batch up. Loaded by verl only.
"""

from __future__ import annotations

from typing import Any

import torch
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker


class StepwiseTrainingWorker(TrainingWorker):
    """One model."""

    def train_batch(self, data: Any) -> Any:
        tu.assign_non_tensor(data, update_lr_scheduler=False, global_batch_size=self._count_of_trained(data))
        return super().train_batch(data)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def advance_learning_rate(self) -> Any:
        return self.engine.lr_scheduler_step()

    def _count_of_trained(self, data: Any) -> int:
        """Sequences with a token to learn from, over all data-parallel ranks."""
        count = sum(bool(mask.any()) for mask in data["loss_mask"].unbind())
        total = torch.tensor(count, device=get_device_id())
        torch.distributed.all_reduce(total, group=self.engine.get_data_parallel_group())
        return max(int(total.item()), 1)


class StepwiseActorRolloutRefWorker(ActorRolloutRefWorker):
    """Actor, rollout and reference in one process."""

    actor_worker_cls = StepwiseTrainingWorker

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def advance_learning_rate(self) -> Any:
        return self.actor.advance_learning_rate()
