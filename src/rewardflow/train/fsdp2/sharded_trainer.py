"""Makes the trainer of a rank that reads its own part of every model: policy, reference and critic.

Always true: no rank ever has a whole model on its device. The reference has the dtype that FSDP2 computes in, which
changes none of its numbers.
"""

from __future__ import annotations

from collections.abc import Callable

from rewardflow.flow.device_thread import DeviceThread
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
    reference = starting.policy.reference() if settings.algorithm.needs_reference else None
    critic = _critic(settings, starting, ranks, read) if settings.algorithm.kind.critic else None
    load_sharded(starting.policy.model, starting.source, ranks, compute=compute)
    if reference is not None:
        if compute is not None and ranks.size > 1:
            set_weight_dtype(reference, compute)
        load_sharded(reference, starting.source, ranks, compute=compute)
    return TorchTrainer(
        starting.policy.model,
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
