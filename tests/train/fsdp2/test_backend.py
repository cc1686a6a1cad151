"""FSDP2 as a back end: it trains the policy's own module, and one process is enough."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_training import run_settings

from rewardflow.errors import InvalidInput
from rewardflow.flow.device_thread import DeviceThread
from rewardflow.policy.load_policy import load_policy, outline_policy
from rewardflow.settings.run_settings import (
    AlgorithmSettings,
    LoraSettings,
    PolicySettings,
    RuntimeSettings,
    TrainerSettings,
)
from rewardflow.train.backends import HeldBytes
from rewardflow.train.fsdp2.backend import BACKEND
from rewardflow.train.fsdp2.trainer import TorchTrainer

SETTINGS = run_settings(algorithm=AlgorithmSettings(kl_coef=0.1))


def test_a_trainer_in_one_process_trains_the_module_it_is_given_and_sends_all_weights() -> None:
    policy, thread = load_policy(SETTINGS.policy, seed=0), DeviceThread("trainer")
    with BACKEND.open_alone(SETTINGS, policy, thread, torch.device("cpu")) as trainer:
        assert isinstance(trainer, TorchTrainer)
        assert trainer.model is policy.model
        assert trainer.reference is not None
        assert (trainer.role.replica, trainer.role.num_replicas) == (0, 1)
        assert trainer.role.speaks
        assert trainer.role.sends_weights
        sent = dict(trainer.weights_to_send())
    expected = dict((*policy.model.named_parameters(), *policy.model.named_buffers()))
    assert sent.keys() == expected.keys()
    assert all(torch.equal(sent[name], expected[name]) for name in expected)


def test_a_model_that_cannot_do_without_padding_is_refused_when_it_is_loaded() -> None:
    settings = run_settings(trainer=TrainerSettings(padding_free=True))
    policy, thread = load_policy(settings.policy, seed=0), DeviceThread("trainer")
    with BACKEND.open_alone(settings, policy, thread, torch.device("cpu")):
        pass
    policy.model.register_forward_pre_hook(_without_positions, with_kwargs=True)
    opened = BACKEND.open_alone(settings, policy, thread, torch.device("cpu"))
    with pytest.raises(InvalidInput, match="keeps rows apart by their positions"):
        opened.__enter__()


def _without_positions(model: object, args: tuple[Any, ...], given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return args, {**given, "position_ids": None}


def test_a_rehearsal_needs_no_weights() -> None:
    BACKEND.rehearse(SETTINGS, outline_policy(SETTINGS.policy), DeviceThread("rehearsal"))


def test_what_does_not_train_is_held_in_the_dtype_of_passes_by_each_of_several_ranks() -> None:
    policy = outline_policy(SETTINGS.policy)
    size = sum(weight.nbytes for weight in policy.model.parameters())
    whole = HeldBytes(weights=size, gradients=size, optimizer=2 * size, reference=size, critic=0, critic_gradients=0)
    spread = run_settings(
        algorithm=AlgorithmSettings(kl_coef=0.1),
        trainer=TrainerSettings(autocast="bfloat16"),
        runtime=RuntimeSettings(kind="ray", ranks=2),
    )
    held = BACKEND.held_by_rank(spread, policy, whole)
    assert (held.weights, held.gradients, held.optimizer) == (size // 2, size // 2, size)
    assert held.reference == size // 4
    adapters = replace(whole, weights=size + 40, gradients=40, optimizer=80, reference=0)
    lora = replace(spread, policy=replace(spread.policy, lora=LoraSettings()))
    assert BACKEND.held_by_rank(lora, policy, adapters).weights == size // 4 + 20


def test_a_critic_trains_in_float32_beside_adapters_in_bfloat16() -> None:
    policy = PolicySettings(dtype="bfloat16", lora=LoraSettings())
    settings = run_settings(policy=policy, algorithm=AlgorithmSettings(advantage="gae"))
    BACKEND.rehearse(settings, outline_policy(policy), DeviceThread("rehearsal"))
