"""Every engine that the settings name has a factory, and the factory says how the engine is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from tiny_run import settings_in

from rewardflow.errors import InvalidInput
from rewardflow.flow.device_thread import DeviceThread
from rewardflow.generate.engines import engine_factory
from rewardflow.generate.samplings import samplings_of_run
from rewardflow.policy.load_policy import Policy
from rewardflow.settings.run_settings import GenerationSettings, RunSettings, VllmSettings
from rewardflow.settings.sections.generation import ENGINES, EngineName


def settings_with(folder: Path, engine: str, **fields: Any) -> RunSettings:
    return settings_in(folder, generation=GenerationSettings(engine=engine), **fields)


def test_every_engine_of_the_settings_has_a_factory(tmp_path: Path) -> None:
    assert set(get_args(EngineName)) == set(ENGINES)
    kinds = {type(engine_factory(settings_with(tmp_path, name))) for name in ENGINES}
    assert len(kinds) == len(ENGINES)


def test_only_an_engine_on_the_policys_own_model_shares_its_weights(tmp_path: Path) -> None:
    sharing = {name: engine_factory(settings_with(tmp_path, name)).uses_policy_model for name in ENGINES}
    assert sharing == {"hf": True, "vllm": False}


def test_an_engine_takes_as_many_devices_as_hold_one_model(tmp_path: Path) -> None:
    alone = settings_with(tmp_path, "hf")
    spread = settings_with(tmp_path, "vllm", vllm=VllmSettings(tensor_parallel=4))
    assert engine_factory(alone).devices_per_engine(alone) == 1
    assert engine_factory(spread).devices_per_engine(spread) == 4


@pytest.mark.parametrize(
    ("vllm", "problem"),
    [
        ({"transfer": "ipc"}, "vllm.transfer=ipc needs a GPU, got trainer.device=cpu"),
        ({"sleep": True}, "vllm.sleep gives a GPU's memory back, got trainer.device=cpu"),
    ],
)
def test_settings_that_need_a_gpu_are_refused_without_one_unless_they_are_left_out(
    tmp_path: Path, policy: Policy, vllm: dict[str, Any], problem: str
) -> None:
    settings = settings_with(tmp_path, "vllm", vllm=VllmSettings(**vllm))
    factory, thread = engine_factory(settings), DeviceThread("test")
    with pytest.raises(InvalidInput, match=problem):
        factory.make(settings, policy, thread, device=torch.device("cpu"), samplings=samplings_of_run(settings))
    assert factory.without_devices(settings).vllm == VllmSettings()
