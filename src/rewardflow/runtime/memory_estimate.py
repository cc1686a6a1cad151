"""Estimates how much memory a run needs on its device, from the shapes of the model and the settings.

Always true: nothing is loaded, and what can be counted is counted at its largest: every response as long as it may be.
Activations and the library's own workspace cannot be counted here and come on top.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from rewardflow.generate.engine_memory import key_value_bytes
from rewardflow.generate.engines import engine_factory
from rewardflow.settings.run_settings import RunSettings
from rewardflow.train.backends import HeldBytes, backend_of

if TYPE_CHECKING:
    from torch import Tensor

    from rewardflow.policy.load_policy import Policy

_NUM_MOMENTS = 2  # that Adam keeps for each weight
_FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """An estimate in bytes. What `trainer.offload` keeps off the device counts as if it were there."""

    device: str
    device_bytes: int | None  # that the device has, where that is known
    num_parameters: int  # of the model, without adapters
    num_trained: int
    weights: int
    gradients: int
    optimizer: int
    reference: int
    critic: int  # its weights and Adam's state
    critic_gradients: int
    generator_copy: int  # of the weights, where generation has a device or a process of its own
    key_values: int  # of the rows that are decoded together
    logits: int  # of one forward and backward

    @property
    def at_once(self) -> int:
        """The most at one time: gradients and logits do not exist while responses are generated, nor keys and values
        while training.

        The generator's copy counts, because on one machine it shares the memory, if not the device.
        """
        always = self.weights + self.optimizer + self.reference + self.critic + self.generator_copy
        return always + max(self.key_values, self.gradients + self.critic_gradients + self.logits)

    @property
    def fits(self) -> bool | None:
        return None if self.device_bytes is None else self.at_once <= self.device_bytes

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "at_once": self.at_once, "fits": self.fits}


def estimate_memory(settings: RunSettings, policy: Policy, device: Any) -> MemoryEstimate:
    """Estimates a run in one process. `policy` may be an outline without weights."""
    weights, trained = _weights(settings, policy)
    backend = backend_of(settings)
    num_parameters = sum(weight.numel() for weight in weights)
    held = backend.held_by_rank(settings, policy, _whole(settings, policy, weights, trained))
    compute_bytes = _num_bytes(settings.trainer.autocast or settings.policy.dtype)
    has_copy = settings.schedule.placement == "separate" or _has_own_weights(settings)
    return MemoryEstimate(
        device=str(device),
        device_bytes=device_memory(device),
        num_parameters=num_parameters,
        num_trained=sum(weight.numel() for weight in trained),
        **asdict(held),
        generator_copy=num_parameters * _num_bytes(settings.engine_dtype) if has_copy else 0,
        key_values=_key_value_bytes(settings, policy.model.config.get_text_config(), compute_bytes),
        logits=_logits_bytes(settings, policy.model.config.get_text_config(), compute_bytes),
    )


def estimate_rank_memory(settings: RunSettings, policy: Policy) -> MemoryEstimate:
    """Estimates one rank of a cluster, whose device is not here; each has its part of what is trained."""
    import torch

    estimate = estimate_memory(settings, policy, torch.device("cpu"))
    ranks = settings.runtime.ranks
    is_colocated = settings.schedule.placement == "colocated"
    has_copy = is_colocated and (ranks > 1 or _has_own_weights(settings))
    return replace(
        estimate,
        device=f"each of {ranks} ranks" if ranks > 1 else "the rank",
        device_bytes=None,
        generator_copy=estimate.num_parameters * _num_bytes(settings.engine_dtype) if has_copy else 0,
        key_values=estimate.key_values if is_colocated else 0,
    )


def _has_own_weights(settings: RunSettings) -> bool:
    """Whether an engine beside the trainer has other weights than those that one rank trains."""
    return not engine_factory(settings).uses_policy_model or not backend_of(settings).trains_policy_model


def _whole(settings: RunSettings, policy: Policy, weights: Sequence[Tensor], trained: Sequence[Tensor]) -> HeldBytes:
    """Returns what a plain module holds in one process."""
    has_adapters = settings.policy.lora is not None
    critic_bytes = _critic_bytes(settings, policy)
    return HeldBytes(
        weights=_size(weights) + (_size(trained) if has_adapters else 0),
        gradients=_size(trained),
        optimizer=_NUM_MOMENTS * _size(trained),
        reference=_size(weights) if settings.algorithm.needs_reference and not has_adapters else 0,
        critic=(1 + _NUM_MOMENTS) * critic_bytes,
        critic_gradients=critic_bytes,
    )


def _weights(settings: RunSettings, policy: Policy) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Returns the weights of the model without adapters, and those that train. The policy stays as it is."""
    from rewardflow.policy.adapters import add_adapters, is_adapter

    model = policy.model
    if settings.policy.lora is not None:
        model = policy.reference()
        add_adapters(model, settings.policy.lora, seed=settings.seed)
    plain = [weight for name, weight in model.named_parameters() if not is_adapter(name)]
    return plain, [weight for weight in model.parameters() if weight.requires_grad]


def _size(weights: Iterable[Tensor]) -> int:
    return sum(weight.numel() * weight.element_size() for weight in weights)


def _critic_bytes(settings: RunSettings, policy: Policy) -> int:
    """Returns the size of the value model's weights."""
    from rewardflow.policy.value_model import build_value_model

    if not settings.algorithm.kind.critic:
        return 0
    model = build_value_model(policy, settings.critic, settings.policy, seed=settings.seed)
    return _size(model.parameters())


def _key_value_bytes(settings: RunSettings, config: Any, compute_bytes: int) -> int:
    """Counts half as much again, because the block grows by half when it is full."""
    num_slots = max(_num_slots(settings), _num_validation_slots(settings))
    return key_value_bytes(config, num_slots + num_slots // 2, compute_bytes)


def _num_slots(settings: RunSettings) -> int:
    """Returns the tokens of the rows that are decoded together."""
    generation, schedule = settings.generation, settings.schedule
    num_rollouts = (schedule.groups_per_step + schedule.refill) * settings.rollouts_per_group
    num_rows = min(generation.max_sequences, num_rollouts)
    return num_rows * (generation.max_prompt_tokens + generation.max_response_tokens)


def _num_validation_slots(settings: RunSettings) -> int:
    """As `_num_slots`, during a validation; assumes a full batch, as the number of prompts is unknown here."""
    generation, validation = settings.generation, settings.validation
    if validation is None:
        return 0
    num_response = validation.max_response_tokens or generation.max_response_tokens
    num_rollouts = generation.max_sequences
    if validation.data.limit is not None:
        num_rollouts = min(num_rollouts, validation.data.limit * validation.rollouts)
    return num_rollouts * (generation.max_prompt_tokens + num_response)


def _logits_bytes(settings: RunSettings, config: Any, compute_bytes: int) -> int:
    """Counts logits of sampled tokens, each with a gradient, and the softmax, which is taken piece by piece."""
    from rewardflow.algo.head_softmax import KEPT_LOGITS
    from rewardflow.algo.token_softmax import LOGITS_AT_A_TIME

    generation, schedule = settings.generation, settings.schedule
    num_sampled = schedule.groups_per_mini_batch * generation.group_size * generation.max_response_tokens
    num_tokens = min(num_sampled, max(settings.trainer.pass_tokens, generation.max_response_tokens))
    num_logits: int = min(num_tokens * config.vocab_size, KEPT_LOGITS)
    return 2 * num_logits * compute_bytes + 2 * min(num_logits, LOGITS_AT_A_TIME) * _FLOAT32_BYTES


def _num_bytes(dtype: str) -> int:
    return _FLOAT32_BYTES if dtype == "float32" else 2


def device_memory(device: Any) -> int | None:
    """Returns the bytes that a device has; None: unknown."""
    from rewardflow.policy.accelerator import memory_bytes

    if device.type == "cpu":
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else None
    return memory_bytes(device)
