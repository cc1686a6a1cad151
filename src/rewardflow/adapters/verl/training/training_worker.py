"""verl's training workers, changed for steps that take several calls.

Always true: the learning rate moves once a step, when the trainer says so, and not with every call; the denominator of
a loss counts the sequences that train, and not those that fill a batch up. Loaded by verl only.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

# A metric of every mini-batch: when its update ended, by the wall clock. Because its name ends in `min`, verl reports
# the smallest of a call.
UPDATED_AT = "updated_at_s/min"


class StepwiseTrainingWorker(TrainingWorker):
    """Trains one model."""

    def train_batch(self, data: Any) -> Any:
        tu.assign_non_tensor(data, update_lr_scheduler=False, global_batch_size=self._count_of_trained(data))
        output = super().train_batch(data)
        if output is not None:
            tu.get(output, "metrics")[UPDATED_AT] = time.time()
        return output

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def advance_learning_rate(self) -> Any:
        return self.engine.lr_scheduler_step()

    def _count_of_trained(self, data: Any) -> int:
        """Counts the sequences with a token to learn from, over all data-parallel ranks."""
        count = sum(bool(mask.any()) for mask in data["loss_mask"].unbind())
        total = torch.tensor(count, device=get_device_id())
        torch.distributed.all_reduce(total, group=self.engine.get_data_parallel_group())
        return max(int(total.item()), 1)


class StepwiseActorRolloutRefWorker(ActorRolloutRefWorker):
    """Has actor, rollout and reference in one process."""

    actor_worker_cls = StepwiseTrainingWorker

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def advance_learning_rate(self) -> Any:
        return self.actor.advance_learning_rate()
