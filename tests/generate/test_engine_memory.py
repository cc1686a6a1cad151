"""The memory of an engine on one of its devices, counted from the shapes of a model."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_run import settings_in

from rewardflow.generate.engine_memory import EngineMemory, key_value_bytes
from rewardflow.generate.engines import engine_factory
from rewardflow.policy.load_policy import Policy, outline_policy
from rewardflow.settings.run_settings import GenerationSettings, PolicySettings, VllmSettings

OUTLINE = outline_policy(PolicySettings())
SIZE = sum(weight.nbytes for weight in OUTLINE.model.parameters())


def vllm_memory(folder: Path, policy: Policy = OUTLINE, **vllm: float) -> EngineMemory:
    generation = GenerationSettings(engine="vllm", max_prompt_tokens=24, max_response_tokens=8)
    settings = settings_in(folder, generation=generation, vllm=VllmSettings(**vllm))  # type: ignore[arg-type]
    found = engine_factory(settings).memory(settings, policy, 1000)
    assert found is not None
    return found


def test_an_engine_on_the_policys_own_model_has_no_memory_of_its_own(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    assert engine_factory(settings).memory(settings, OUTLINE, 1000) is None


def test_an_engine_has_the_weights_and_the_cache_of_the_longest_sequence_in_its_share(tmp_path: Path) -> None:
    found = vllm_memory(tmp_path, memory_share=0.5)
    assert (found.reserved, found.weights) == (500, SIZE)
    assert found.key_values == key_value_bytes(OUTLINE.model.config, 32, 4)
    assert found.short == found.weights + found.key_values - 500


def test_devices_that_share_an_engine_each_have_a_part_of_it(tmp_path: Path) -> None:
    alone, spread = vllm_memory(tmp_path), vllm_memory(tmp_path, tensor_parallel=2)
    assert spread.weights == alone.weights // 2
    assert spread.key_values == alone.key_values // 2


def test_a_cache_of_a_given_size_counts_instead_of_a_share(tmp_path: Path) -> None:
    found = vllm_memory(tmp_path, kv_cache_gb=0.5, memory_share=0.1)
    assert found.reserved == SIZE + 5 * 10**8
    assert found.short == 0


@pytest.mark.parametrize(("sleeps", "in_update", "in_publish"), [(False, 9, 9), (True, 0, 4)])
def test_an_engine_that_sleeps_wakes_its_weights_alone_to_be_sent_others(
    sleeps: bool, in_update: int, in_publish: int
) -> None:
    engine = EngineMemory(reserved=9, weights=4, key_values=1, buffers=0, sleeps=sleeps)
    assert (engine.in_update, engine.in_publish) == (in_update, in_publish)
