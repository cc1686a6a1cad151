"""verl's training workers, changed for steps that take several calls.

Always true: the learning rate moves once a step, when the trainer says so, and not with every call; the denominator of
a loss counts the sequences that train, and not those that fill a batch up; a token weighs the same in every mini-batch
of a step, if the trainer gives their shares. Loaded by verl only.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

TOKEN_SHARES = "rewardflow_token_shares"  # a call's setting: the share of each of its mini-batches

# A metric of every mini-batch: when its update ended, by the wall clock. Because its name ends in `min`, verl reports
# the smallest of a call.
UPDATED_AT = "updated_at_s/min"


def loss_with_share(loss: Callable[..., Any], share: float, *, data: Any, **others: Any) -> Any:
    """Calls verl's loss function, which divides by `batch_num_tokens`, with that number divided by the share."""
    tu.assign_non_tensor(data, batch_num_tokens=data["batch_num_tokens"] / share)
    return loss(data=data, **others)


class StepwiseTrainingWorker(TrainingWorker):
    """Trains one model."""

    loss_fn: Any
    _shares: Iterator[float] = itertools.repeat(1.0)  # of the mini-batches of a call, in their order

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="train"), blocking=False)
    def train_mini_batch(self, data: Any) -> Any:
        shares = tu.pop(data, key=TOKEN_SHARES, default=(1.0,))
        self._shares = itertools.cycle(shares)  # every epoch has the same mini-batches
        return super().train_mini_batch(data)

    def train_batch(self, data: Any) -> Any:
        tu.assign_non_tensor(data, update_lr_scheduler=False, global_batch_size=self._count_of_trained(data))
        loss = self.loss_fn
        self.loss_fn = partial(loss_with_share, loss, next(self._shares))
        try:
            output = super().train_batch(data)
        finally:
            self.loss_fn = loss
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
