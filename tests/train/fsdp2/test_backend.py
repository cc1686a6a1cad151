"""FSDP2 as a back end: it trains the policy's own module, and one process is enough."""

from __future__ import annotations

import torch
from tiny_training import run_settings

from rewardflow.flow.device_thread import DeviceThread
from rewardflow.policy.load_policy import load_policy, outline_policy
from rewardflow.settings.run_settings import AlgorithmSettings
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


def test_a_rehearsal_needs_no_weights() -> None:
    BACKEND.rehearse(SETTINGS, outline_policy(SETTINGS.policy), DeviceThread("rehearsal"))
