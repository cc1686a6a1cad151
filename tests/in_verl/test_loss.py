"""The policy loss `decoupled`, in verl's registry and by verl's own rules."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from tensordict import TensorDict
from verl.trainer.ppo import core_algos
from verl.utils import tensordict_utils as tu

from rewardflow.errors import InvalidInput


class ActorSettings(dict[str, float]):
    """What the loss reads of verl's actor settings."""

    clip_ratio, clip_ratio_low, clip_ratio_high = 0.2, 0.2, 0.3
    global_batch_info: ClassVar[dict[str, int]] = {}


def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (4, 6)
    return {
        "old_log_prob": -torch.rand(shape, generator=generator),
        "log_prob": -torch.rand(shape, generator=generator),
        "advantages": torch.randn(shape, generator=generator),
        "response_mask": torch.rand(shape, generator=generator) > 0.3,
        "rollout_is_weights": torch.rand(shape, generator=generator) * 2,
    }


def test_verl_finds_it_by_name_and_it_is_verls_own_loss_with_these_weights() -> None:
    tensors = batch()
    ours, _ = core_algos.get_policy_loss_fn("decoupled")(**tensors, config=ActorSettings())
    verls, _ = core_algos.get_policy_loss_fn("vanilla")(**tensors, config=ActorSettings())
    assert float(ours) == pytest.approx(float(verls), rel=1e-5)


def test_without_weights_there_is_no_such_loss() -> None:
    tensors = {name: tensor for name, tensor in batch().items() if name != "rollout_is_weights"}
    with pytest.raises(InvalidInput, match="got no weights"):
        core_algos.get_policy_loss_fn("decoupled")(**tensors, config=ActorSettings())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # from verl's import of Ray
def test_with_its_share_a_mini_batch_is_divided_by_the_mean_of_the_step() -> None:
    """Two mini-batches of 2 and 6 tokens: every token is divided by 4, the mean."""
    from rewardflow.adapters.verl.training.training_worker import loss_with_share

    for tokens, share in ((2, 0.5), (6, 1.5)):
        data = tu.assign_non_tensor(TensorDict({}, batch_size=[1]), batch_num_tokens=tokens)
        assert loss_with_share(lambda data: 1.0 / data["batch_num_tokens"], share, data=data) == pytest.approx(1 / 4)
