"""Turns accumulated gradients into new weights with Megatron's distributed optimizer, and gives its state.

Always true: gradients add up in float32 on each rank and are reduced once for an update, never by the schedule that
computes them; the reported norm is that of the loss's gradient; a gradient that is not finite changes nothing.

`Remembered` is assembled here and not by Megatron's own checkpointing: without TransformerEngine or Apex its optimizer
is torch's, whose state has a counter of steps that Megatron's loading does not restore.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from torch import Tensor, nn

from rewardflow.settings.run_settings import TrainerSettings
from rewardflow.train.fsdp2.optimizer import move_state, set_learning_rate
from rewardflow.train.fsdp2.sharding import Ranks
from rewardflow.train.megatron.building import ModelPart

MOMENTS = ("exp_avg", "exp_avg_sq")  # Adam's, of each weight
STEP = "step"  # how many updates they have seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """Weight and optimizer state in this rank's shape, in float32. `moments` are empty before the first update."""

    weight: Tensor
    moments: Mapping[str, Tensor]
    step: float = 0.0


class DistributedGradients:
    """The gradients of a rank's part, and an optimizer whose state is spread over the ranks with that part."""

    def __init__(self, part: ModelPart, settings: TrainerSettings) -> None:
        self._part = part
        self._max_norm = settings.max_grad_norm
        self.module: Any = DistributedDataParallel(
            part.config,
            DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True),
            part.module,
        )
        dtype = part.config.params_dtype
        chained = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=settings.lr,
                weight_decay=settings.weight_decay,
                adam_beta1=settings.betas[0],
                adam_beta2=settings.betas[1],
                adam_eps=settings.eps,
                bf16=dtype == torch.bfloat16,
                params_dtype=dtype,
                use_distributed_optimizer=True,
            ),
            [self.module],
            config_overrides={},  # all weights decay, as with the other backend
        )
        (self._optimizer,) = chained.chained_optimizers
        self.clear()

    @property
    def lr(self) -> float:
        return float(self._optimizer.param_groups[0]["lr"])

    def set_learning_rate(self, lr: float) -> None:
        set_learning_rate(self._optimizer.optimizer, lr)

    def move_state(self, device: torch.device | None) -> None:
        """Moves the optimizer's state; with None back to where the weights are."""
        move_state(self._optimizer.optimizer, device)

    def clear(self) -> None:
        self.module.zero_grad_buffer()
        self._optimizer.zero_grad()

    def update(self, scale: float) -> float:
        """Reduces the gradient, scales it, clips it and takes the step; returns the unclipped norm."""
        finalize_model_grads([self.module])
        self.module.scale_gradients(scale)
        self._optimizer.prepare_grads()
        grad_norm = float(self._optimizer.get_grad_norm())
        if math.isfinite(grad_norm):
            weights = self._optimizer.get_parameters()
            if self._max_norm is not None and weights:
                clip_grad_by_total_norm_fp32(weights, self._max_norm, grad_norm)
            self._optimizer.step_with_ready_grads()
        self.clear()
        return grad_norm

    # -- what is remembered ------------------------------------------------------------------------------------------

    def steps_taken(self) -> float:
        """Returns the count, the same on all ranks that hold this part, also those with nothing to update."""
        own = max((float(self._step_of(weight)) for weight in self._weights()), default=0.0)
        steps = torch.tensor(own, dtype=torch.float64)
        return float(Ranks(self._part.layout.device, self._part.layout.holders.group).maximum(steps))

    def recall(self, parameter: nn.Parameter, steps: float) -> Remembered:
        """Gathers a weight's state; all ranks that hold this part call it, each has a run of entries."""
        moments = {name: self._joined(parameter, name) for name in MOMENTS} if steps else {}
        return Remembered(weight=self._joined(parameter, None), moments=moments, step=steps)

    @torch.no_grad()
    def put_back(self, parameter: nn.Parameter, remembered: Remembered) -> None:
        parameter.copy_(remembered.weight)
        own = self._own(parameter)
        if own is None:
            return
        weight, start, end = own
        weight.copy_(remembered.weight.reshape(-1)[start:end])
        state = self._optimizer.optimizer.state
        state.pop(weight, None)
        if remembered.moments:
            state[weight] = {
                name: moment.reshape(-1)[start:end].to(weight.device, torch.float32, copy=True)
                for name, moment in remembered.moments.items()
            }
            self._set_step(weight, remembered.step)

    def _joined(self, parameter: nn.Parameter, name: str | None) -> Tensor:
        """Joins one moment of a weight, or the weight itself, from the ranks that each hold a run of its entries."""
        whole = torch.zeros(parameter.numel(), dtype=torch.float32, device=parameter.device)
        own = self._own(parameter)
        if own is not None:
            weight, start, end = own
            column = weight if name is None else self._optimizer.optimizer.state[weight][name]
            whole[start:end] = column.detach().to(whole.device)
        if self._part.layout.holders.size > 1:
            dist.all_reduce(whole, group=self._part.layout.holders.group)
        return whole.view(parameter.shape)

    def _own(self, parameter: nn.Parameter) -> tuple[Tensor, int, int] | None:
        """Returns the part of a weight that this rank updates, with the start and end of its run of entries."""
        found = self._optimizer.model_param_group_index_map.get(parameter)
        if found is None:
            return None
        group, place = found
        run = self._optimizer._get_model_param_range_map(parameter)["param"]
        return self._optimizer.optimizer.param_groups[group]["params"][place], run.start, run.end

    def _weights(self) -> list[Tensor]:
        return [weight for group in self._optimizer.optimizer.param_groups for weight in group["params"]]

    def _step_of(self, weight: Tensor) -> Any:
        """Returns the number of updates. torch counts for each weight, TransformerEngine and Apex for each group."""
        state = self._optimizer.optimizer.state.get(weight, {})
        return state.get(STEP, self._optimizer.optimizer.param_groups[0].get(STEP, 0)) if state else 0

    def _set_step(self, weight: Tensor, step: float) -> None:
        if isinstance(self._optimizer.optimizer, torch.optim.AdamW):
            self._optimizer.optimizer.state[weight][STEP] = torch.tensor(step, dtype=torch.float32)
        else:
            for group in self._optimizer.optimizer.param_groups:
                group[STEP] = int(step)
