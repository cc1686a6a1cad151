"""Makes the trainer of a rank that reads its own part of every model: policy, reference and critic.

Always true: no rank ever has a whole model on its device. The reference has the dtype that FSDP2 computes in, which
changes none of its numbers; so have the weights that do not train beside adapters.
"""

from __future__ import annotations

from collections.abc import Callable

from rewardflow.flow.device_thread import DeviceThread
from rewardflow.policy.adapters import add_adapters, with_adapters
from rewardflow.policy.outline import set_weight_dtype
from rewardflow.policy.starting_weights import StartingWeights
from rewardflow.policy.value_model import build_value_model, critic_policy_settings
from rewardflow.policy.weights_by_name import under
from rewardflow.settings.run_settings import PolicySettings, RunSettings
from rewardflow.train.device_trainer import arguments_of, compute_dtype_of
from rewardflow.train.fsdp2.critic import CriticPart
from rewardflow.train.fsdp2.sharded_loading import load_sharded
from rewardflow.train.fsdp2.sharding import Ranks
from rewardflow.train.fsdp2.trainer import TorchTrainer

ReadWeights = Callable[[PolicySettings], StartingWeights]


def make_sharded_trainer(
    settings: RunSettings, thread: DeviceThread, ranks: Ranks, *, read: ReadWeights
) -> TorchTrainer:
    """`read` gives an outline and its weights."""
    compute = compute_dtype_of(settings.trainer)
    starting = read(settings.policy)
    model, source, lora = starting.policy.model, starting.source, settings.policy.lora
    frozen_dtype = compute if ranks.size > 1 else None
    critic = _critic(settings, starting, ranks, read) if settings.algorithm.kind.critic else None
    reference = None
    if lora is not None:
        if frozen_dtype is not None:
            set_weight_dtype(model, frozen_dtype)
        add_adapters(model, lora, seed=settings.seed)
        source = with_adapters(source, model, seed=settings.seed)
        reference = model if settings.algorithm.needs_reference else None
    elif settings.algorithm.needs_reference:
        reference = starting.policy.reference()
        if frozen_dtype is not None:
            set_weight_dtype(reference, frozen_dtype)
        load_sharded(reference, source, ranks, compute=compute)
    load_sharded(model, source, ranks, compute=compute)
    return TorchTrainer(
        model,
        **arguments_of(settings, thread),
        reference=reference,
        critic=critic,
        group=ranks.group,
    )


def _critic(settings: RunSettings, starting: StartingWeights, ranks: Ranks, read: ReadWeights) -> CriticPart:
    model = build_value_model(starting.policy, settings.critic, settings.policy, seed=settings.seed)
    model.start_head(ranks.device)
    if model.trunk is not None:
        if settings.critic.model is not None:
            starting = read(critic_policy_settings(settings.critic.model, settings.policy))
        source = under(f"{starting.policy.model.base_model_prefix}.", starting.source)
        load_sharded(model.trunk, source, ranks, compute=compute_dtype_of(settings.trainer))
    return CriticPart(model=model, settings=settings.critic)
