"""The settings of the policy's trainer and of the critic: optimizer, batch size, devices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from rewardflow.errors import InvalidInput
from rewardflow.settings.rules import at_least, check_choices, within
from rewardflow.settings.sections.policy import Dtype

_TRUNK_WEIGHT = 0.1
CPU_PASS_TOKENS = 16384

Backend = Literal["fsdp2", "megatron"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendTraits:
    """What the rules of the settings must know about a back end."""

    trains_critic: bool
    trains_adapters: bool
    padding_free: bool


# The implementation of each is `rewardflow.train.<name>.backend`.
BACKENDS: Mapping[Backend, BackendTraits] = {
    "fsdp2": BackendTraits(trains_critic=True, trains_adapters=True, padding_free=True),
    "megatron": BackendTraits(trains_critic=False, trains_adapters=False, padding_free=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """AdamW, and the schedule of its learning rate."""

    lr: float = 1e-6  # highest learning rate
    betas: tuple[float, float] = (0.9, 0.999)  # of Adam
    eps: float = 1e-8  # of Adam
    weight_decay: float = 0.0  # of AdamW
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"  # after the warm-up, until the last step
    warmup_steps: int = 0  # steps over which the learning rate rises to `lr`
    min_lr_share: float = 0.0  # final learning rate of `linear` and `cosine`, as a share of `lr`
    max_grad_norm: float | None = 1.0  # clip the gradient's norm to this; null: do not clip

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
    """How `trainer.backend: megatron` splits the model, over as many ranks as the product of the sizes.

    `runtime.ranks` is a multiple of this product: the other ranks hold replicas, which train on other samples.
    """

    tensor_parallel: int = 1  # ranks that split each layer's matrices and the vocabulary
    pipeline_parallel: int = 1  # ranks that split the layers
    context_parallel: int = 1  # ranks that split the tokens of each sequence

    def __post_init__(self) -> None:
        for name in ("tensor_parallel", "pipeline_parallel", "context_parallel"):
            at_least(name, getattr(self, name), 1)

    @property
    def num_ranks(self) -> int:
        """The number of ranks that hold one model together."""
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel

    def __str__(self) -> str:
        return f"{self.tensor_parallel} x {self.pipeline_parallel} x {self.context_parallel}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings(OptimizerSettings):
    """The optimizer, the back end and the size of micro-batches."""

    backend: Backend = "fsdp2"  # how the model is spread over ranks
    megatron: MegatronSettings = MegatronSettings()
    # prompt and response tokens in one forward and backward pass; null: 16384, or on an accelerator 8192 or the longest
    # rollout, and fewer where its memory is too little
    micro_batch_tokens: int | None = None
    padding_free: bool = False  # the rows of a pass follow one another instead of being padded to the longest
    device: str = "auto"  # torch's name of the device; `auto`: a GPU if there is one that has float64
    # what passes compute in; null: the dtype of the weights, or on an accelerator bfloat16
    autocast: Dtype | None = None
    tf32: bool = True  # on a GPU, round the factors of float32 products to TensorFloat-32, which is much faster
    offload: bool = False  # move training state off the device between steps
    threads: int | None = None  # torch's threads on the CPU; null: torch's default

    def __post_init__(self) -> None:
        OptimizerSettings.__post_init__(self)
        if self.micro_batch_tokens is not None:
            at_least("micro_batch_tokens", self.micro_batch_tokens, 1)
        if self.threads is not None:
            at_least("threads", self.threads, 1)
        for field in fields(self):  # a section with the name of a back end is for that back end
            is_unread = field.name in BACKENDS and field.name != self.backend
            if is_unread and getattr(self, field.name) != field.default:
                raise InvalidInput(f"settings of {field.name} are for backend={field.name}, got backend={self.backend}")

    @property
    def pass_tokens(self) -> int:
        """The tokens of a pass; those of a CPU where the settings leave them to the device."""
        return CPU_PASS_TOKENS if self.micro_batch_tokens is None else self.micro_batch_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticSettings(OptimizerSettings):
    """The critic learns the value of each token, for `algorithm.advantage: gae`, with its own optimizer.

    `model` is a separate value model; `head` is a head on the policy's trunk, which then learns from both losses.
    """

    lr: float = 1e-5  # highest learning rate
    form: Literal["model", "head"] = "model"  # a separate model, or a head on the policy
    model: str | None = None  # initial weights of a separate model, named as in `policy.model`; null: the policy
    alone_steps: int = 0  # first steps, in which only the critic learns
    clip: float | None = 0.5  # largest change of a value that counts, since before the step's first update; null: any
    # weight of the value loss in the gradient of the policy's trunk, for `form: head`; 0: the trunk ignores the loss
    trunk_weight: float = _TRUNK_WEIGHT

    def __post_init__(self) -> None:
        OptimizerSettings.__post_init__(self)
        at_least("alone_steps", self.alone_steps, 0)
        within("trunk_weight", self.trunk_weight, 0.0, math.inf)
        if self.clip is not None:
            within("clip", self.clip, 0.0, math.inf, low_open=True)
        if self.form == "head" and self.model is not None:
            raise InvalidInput(f"a head uses the policy's model: model must be null, got model={self.model}")
        if self.form == "model" and self.trunk_weight != _TRUNK_WEIGHT:
            raise InvalidInput(f"trunk_weight is for form=head, got form=model, trunk_weight={self.trunk_weight}")
