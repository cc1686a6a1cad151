"""A back end is found by its name in the settings, and answers what a run asks before anything is loaded."""

from __future__ import annotations

import subprocess
import sys
from typing import get_args

import pytest
from tiny_training import run_settings

from rewardflow.policy.load_policy import outline_policy
from rewardflow.settings.run_settings import RunSettings
from rewardflow.settings.sections.training import BACKENDS, Backend, TrainerSettings
from rewardflow.train.backends import HeldBytes, backend_of


def settings_for(backend: Backend) -> RunSettings:
    return run_settings(trainer=TrainerSettings(backend=backend))


def test_every_name_that_the_settings_know_has_a_line_of_traits() -> None:
    assert list(BACKENDS) == list(get_args(Backend))


@pytest.mark.parametrize("name", BACKENDS)
def test_every_name_has_a_folder_with_a_back_end(name: Backend) -> None:
    assert type(backend_of(settings_for(name))).__module__ == f"rewardflow.train.{name}.backend"


@pytest.mark.parametrize("name", BACKENDS)
def test_one_process_without_autocast_holds_a_plain_module_whatever_the_back_end(name: Backend) -> None:
    settings = settings_for(name)
    policy = outline_policy(settings.policy)
    size = sum(weight.nbytes for weight in policy.model.parameters())
    whole = HeldBytes(weights=size, gradients=size, optimizer=2 * size, reference=0, critic=0, critic_gradients=0)
    assert backend_of(settings).held_by_rank(settings, policy, whole) == whole


def test_looking_at_every_back_end_imports_neither_torch_nor_megatron() -> None:
    modules = ", ".join(f"rewardflow.train.{name}.backend" for name in BACKENDS)
    code = f"import sys, {modules}\nassert not {{'torch', 'megatron'}} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
