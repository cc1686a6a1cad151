"""Optimizers and how much goes through a model at once: the policy's trainer, and a critic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from rewardflow.errors import InvalidInput
from rewardflow.settings.rules import at_least, check_choices, within
from rewardflow.settings.sections.policy import Dtype

_TRUNK_WEIGHT = 0.1

Backend = Literal["fsdp2", "megatron"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendTraits:
    """What the rules of the settings must know about a back end."""

    trains_critic: bool


# The implementation of each is `rewardflow.train.<name>.backend`.
BACKENDS: Mapping[Backend, BackendTraits] = {
    "fsdp2": BackendTraits(trains_critic=True),
    "megatron": BackendTraits(trains_critic=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """AdamW, and how its learning rate moves."""

    lr: float = 1e-6  # learning rate, at its highest
    betas: tuple[float, float] = (0.9, 0.999)  # of Adam
    eps: float = 1e-8  # of Adam
    weight_decay: float = 0.0  # of AdamW
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"  # after the warm-up, over the run's steps
    warmup_steps: int = 0  # steps in which the learning rate rises
    min_lr_share: float = 0.0  # where `linear` and `cosine` end, as a share of `lr`
    max_grad_norm: float | None = 1.0  # longer gradients are shortened to this; null: never

    def __post_init__(self) -> None:
        check_choices(self)
        within("lr", self.lr, 0.0, math.inf)
        within("eps", self.eps, 0.0, math.inf, low_open=True)
        within("weight_decay", self.weight_decay, 0.0, math.inf)
        within("min_lr_share", self.min_lr_share, 0.0, 1.0)
        at_least("warmup_steps", self.warmup_steps, 0)
        for beta in self.betas:
            within("betas", beta, 0.0, 1.0, high_open=True)
        if self.max_grad_norm is not None:
            within("max_grad_norm", self.max_grad_norm, 0.0, math.inf, low_open=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronSettings:
    """How `trainer.backend: megatron` cuts the model, over as many ranks as the product of the sizes.

    `runtime.ranks` is a multiple of it: the ranks beyond are replicas, which train on other samples.
    """

    tensor_parallel: int = 1  # ranks that share each layer's matrices, and the vocabulary
    pipeline_parallel: int = 1  # ranks that have some of the layers each
    context_parallel: int = 1  # ranks that have some of each sequence's tokens

    def __post_init__(self) -> None:
        for name in ("tensor_parallel", "pipeline_parallel", "context_parallel"):
            at_least(name, getattr(self, name), 1)

    @property
    def num_ranks(self) -> int:
        """That hold one model together."""
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel

    def __str__(self) -> str:
        return f"{self.tensor_parallel} x {self.pipeline_parallel} x {self.context_parallel}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings(OptimizerSettings):
    """The optimizer, and how much goes through the model at once."""

    backend: Backend = "fsdp2"  # what spreads the model over ranks
    megatron: MegatronSettings = MegatronSettings()
    micro_batch_tokens: int = 16384  # prompt and response tokens of one forward and backward
    device: str = "auto"  # as torch names it; `auto`: a GPU if there is one
    autocast: Dtype | None = None  # null: compute in the dtype of the weights
    offload: bool = False  # keep what only training needs off the device between steps
    threads: int | None = None  # of torch on the CPU

    def __post_init__(self) -> None:
        OptimizerSettings.__post_init__(self)
        at_least("micro_batch_tokens", self.micro_batch_tokens, 1)
        if self.threads is not None:
            at_least("threads", self.threads, 1)
        for field in fields(self):  # a section with the name of a back end is for that back end
            is_unread = field.name in BACKENDS and field.name != self.backend
            if is_unread and getattr(self, field.name) != field.default:
                raise InvalidInput(f"settings of {field.name} are for backend={field.name}, got backend={self.backend}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticSettings(OptimizerSettings):
    """What learns the value of each token, for `algorithm.advantage: gae`, with an optimizer of its own.

    `model` is a value model of its own; `head` sits on the policy's trunk, which then learns from both losses.
    """

    lr: float = 1e-5  # learning rate, at its highest
    form: Literal["model", "head"] = "model"  # a model of its own, or a head on the policy's
    model: str | None = None  # what a model of its own starts as, named as in `policy.model`; null: the policy
    alone_steps: int = 0  # steps at the start in which only the critic learns
    clip: float | None = 0.5  # how far from its value before the step's first update a value counts; null: however far
    # of the value loss in the gradient of the policy's trunk, where the critic is a head on it; 0: none reaches it
    trunk_weight: float = _TRUNK_WEIGHT

    def __post_init__(self) -> None:
        OptimizerSettings.__post_init__(self)
        at_least("alone_steps", self.alone_steps, 0)
        within("trunk_weight", self.trunk_weight, 0.0, math.inf)
        if self.clip is not None:
            within("clip", self.clip, 0.0, math.inf, low_open=True)
        if self.form == "head" and self.model is not None:
            raise InvalidInput(f"a head sits on the policy's own model: model must be null, got model={self.model}")
        if self.form == "model" and self.trunk_weight != _TRUNK_WEIGHT:
            raise InvalidInput(f"trunk_weight is for form=head, got form=model, trunk_weight={self.trunk_weight}")
