"""`--check` as a function: what a run would need and cost, found out without starting it."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_run import calls_in, settings_in

from rewardflow.errors import InvalidInput
from rewardflow.flow.schedule import Schedule
from rewardflow.policy.load_policy import load_policy, outline_policy
from rewardflow.runtime.memory_estimate import MemoryEstimate, estimate_memory
from rewardflow.runtime.preflight import Preflight, plan_calls, preflight
from rewardflow.runtime.prepare import check_start
from rewardflow.settings.run_settings import (
    AlgorithmSettings,
    CriticSettings,
    DataSettings,
    GenerationSettings,
    PolicySettings,
    RunSettings,
    TrainerSettings,
    ValidationSettings,
)

torch.set_num_threads(1)

_INSTALLED = {distribution.name for distribution in importlib.metadata.distributions()}


def found(settings: RunSettings) -> Preflight:
    return asyncio.run(preflight(check_start(settings)))


def memory(settings: RunSettings) -> MemoryEstimate:
    return estimate_memory(settings, outline_policy(settings.policy), torch.device("cpu"))


# ---- the whole ----------------------------------------------------------------------------------------------------


def test_a_run_that_is_well_is_told_what_it_costs_and_nothing_is_started(tmp_path: Path) -> None:
    check = found(settings_in(tmp_path, run_dir=tmp_path / "run"))
    assert check.problem is None
    assert check.cost is not None
    assert check.cost.a_step_usd == pytest.approx(0.01 * 4 * 4)
    assert check.cost.a_run_usd == pytest.approx(0.01 * 4 * 4 * 3)
    assert calls_in(tmp_path) == [f"sample {check.sample.rollouts[0].ground_truth}"]
    assert not (tmp_path / "run").exists()
    assert json.loads(json.dumps(check.to_json()))["ok"] is True


def test_a_cap_that_is_too_small_for_the_run_is_told_with_the_step_that_reaches_it(tmp_path: Path) -> None:
    a_step_usd = 0.01 * 4 * 4  # of three steps
    costs = {cap: found(settings_in(tmp_path, limits={"max_cost_usd": cap * a_step_usd})).cost for cap in (2.5, 3.1)}
    assert [None if cost is None else cost.capped_at_step for cost in costs.values()] == [2, None]


def test_a_sample_that_failed_is_reported_with_its_reason(tmp_path: Path) -> None:
    check = found(settings_in(tmp_path, "broken"))
    assert check.problem is not None
    assert check.problem.startswith("user_error: ")
    assert check.cost is None
    assert check.to_json()["sample"]["problem"] == check.problem


def test_a_price_of_0_is_a_price_and_silence_is_none(tmp_path: Path) -> None:
    free = found(settings_in(tmp_path, "Free"))
    assert free.cost is not None
    assert (free.cost.a_verdict_usd, free.cost.a_run_usd) == (0.0, 0.0)
    assert found(settings_in(tmp_path, "silent")).cost is None


def test_a_call_that_was_refused_does_not_show_that_calls_are_free(tmp_path: Path) -> None:
    assert found(settings_in(tmp_path, "Paid")).cost is None


def test_a_group_costs_by_its_rollouts(tmp_path: Path) -> None:
    check = found(settings_in(tmp_path, "Ranking"))
    assert check.calls.a_step == 4
    assert check.cost is not None
    assert check.cost.a_step_usd == pytest.approx(0.04 / 2 * 4 * 4)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"policy": PolicySettings(model="./nowhere")}, r"policy\.model"),
        ({"policy": PolicySettings(dtype="bfloat16")}, "float32"),
        ({"trainer": TrainerSettings(autocast="float16")}, r"trainer\.autocast"),
        ({"trainer": TrainerSettings(device="cuda:99")}, r"trainer\.device"),
        ({"generation": GenerationSettings(max_prompt_tokens=4096)}, "positions"),
        ({"generation": GenerationSettings(max_prompt_tokens=2)}, "max_prompt_tokens=2"),
        ({"reward": "rewards.py:nothing"}, "nothing"),
        ({"data": DataSettings(path="nowhere.jsonl")}, "nowhere.jsonl"),
    ],
)
def test_what_would_stop_the_run_is_raised(tmp_path: Path, fields: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        found(settings_in(tmp_path, **fields))


def test_a_directory_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    with pytest.raises(InvalidInput, match="holds a run already"):
        found(settings_in(tmp_path, run_dir=tmp_path / "run"))


def test_a_file_or_a_directory_with_something_else_cannot_be_that_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InvalidInput, match="a run directory must be a directory, got the file"):
        found(settings_in(tmp_path, run_dir=tmp_path / "notes.txt"))
    with pytest.raises(InvalidInput, match=r"without a run\.json but with .*notes\.txt"):
        found(settings_in(tmp_path, run_dir=tmp_path))


@pytest.mark.skipif("megatron-core" in _INSTALLED, reason="megatron-core is installed")
def test_a_trainer_that_is_not_installed_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="needs megatron-core"):
        found(settings_in(tmp_path, trainer=TrainerSettings(backend="megatron")))


def test_prompts_that_are_too_long_are_counted(tmp_path: Path) -> None:
    rows = [{"prompt": "1=", "ground_truth": "1"}, {"prompt": "1" * 20, "ground_truth": "1"}]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = settings_in(tmp_path, data=DataSettings(path=tmp_path / "data.jsonl"))
    with pytest.raises(InvalidInput, match="at most max_prompt_tokens=8"):
        found(settings)
    filtering = dataclasses.replace(settings.generation, overlong_prompts="filter")
    prompts = found(dataclasses.replace(settings, generation=filtering)).prompts
    assert (prompts.num_prompts, prompts.num_read, prompts.num_too_long) == (2, 2, 1)


# ---- calls --------------------------------------------------------------------------------------------------------


def test_reserves_count_as_what_may_be_needed_at_most(tmp_path: Path) -> None:
    schedule = Schedule(groups_per_step=4, refill=2, refill_rounds=3)
    plan = plan_calls(settings_in(tmp_path, schedule=schedule), ("rollout", "group"))
    assert (plan.a_step, plan.a_run) == (4 * (4 + 1), 3 * 4 * (4 + 1))
    assert (plan.most_a_step, plan.most_a_run) == ((4 + 2 * 4) * 5, 3 * (4 + 2 * 4) * 5)


# ---- memory -------------------------------------------------------------------------------------------------------


def test_weights_gradients_and_moments_are_those_of_the_model_that_would_be_loaded(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, policy=PolicySettings(tiny_hidden=32, tiny_layers=3))
    weights = list(load_policy(settings.policy, seed=0).model.parameters())
    size = sum(weight.nbytes for weight in weights)
    estimate = memory(settings)
    assert estimate.num_parameters == sum(weight.numel() for weight in weights)
    assert (estimate.weights, estimate.gradients, estimate.optimizer) == (size, size, 2 * size)
    assert (estimate.reference, estimate.generator_copy) == (0, 0)


def test_a_model_in_a_folder_is_outlined_without_its_weights(tmp_path: Path) -> None:
    policy = load_policy(PolicySettings(), seed=0)
    policy.model.save_pretrained(tmp_path / "model")
    policy.tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    outline = outline_policy(PolicySettings(model=str(tmp_path / "model")))
    shapes = {name: weight.shape for name, weight in policy.model.named_parameters()}
    assert {name: weight.shape for name, weight in outline.model.named_parameters()} == shapes
    assert outline.model.device.type == "meta"


def test_the_reference_and_a_generator_of_its_own_are_copies_of_the_weights(tmp_path: Path) -> None:
    schedule = Schedule(groups_per_step=4, placement="separate")
    estimate = memory(settings_in(tmp_path, schedule=schedule, algorithm=AlgorithmSettings(kl_coef=0.1)))
    assert (estimate.reference, estimate.generator_copy) == (estimate.weights, estimate.weights)


def test_a_critic_is_counted_with_its_gradients_and_its_optimizer(tmp_path: Path) -> None:
    gae = AlgorithmSettings(advantage="gae", whiten=False)
    none = memory(settings_in(tmp_path))
    assert (none.critic, none.critic_gradients) == (0, 0)
    head = memory(settings_in(tmp_path, algorithm=gae, critic=CriticSettings(form="head")))
    assert (head.critic, head.critic_gradients) == (3 * 65 * 4, 65 * 4)
    model = memory(settings_in(tmp_path, algorithm=gae))
    trunk = sum(weight.nbytes for weight in load_policy(PolicySettings(), seed=0).model.base_model.parameters())
    assert (model.critic, model.critic_gradients) == (3 * (trunk + 65 * 4), trunk + 65 * 4)
    assert model.at_once - none.at_once >= model.critic


def test_a_greedy_baseline_counts_in_calls_cost_and_memory(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, algorithm=AlgorithmSettings(advantage="remax"))
    assert plan_calls(settings, ("rollout",)).a_step == 4 * 5
    assert plan_calls(settings, ("group",)).a_step == 4
    assert memory(settings).key_values == memory(settings_in(tmp_path)).key_values * 5 // 4
    check = found(settings)
    assert check.cost is not None
    assert check.cost.a_step_usd == pytest.approx(0.01 * 4 * 5)


def test_keys_and_values_grow_with_the_rows_that_are_decoded_together(tmp_path: Path) -> None:
    lengths = {"group_size": 4, "max_prompt_tokens": 100, "max_response_tokens": 100}
    few, many, more_than_asked = (
        memory(settings_in(tmp_path, generation=GenerationSettings(**lengths, max_sequences=rows))).key_values
        for rows in (4, 16, 1000)
    )
    # 2 layers, 2 heads of 16 channels, keys and values, float32, and half as much again in reserve
    assert few == 4 * 300 * 2 * 2 * 2 * 16 * 4
    assert many == more_than_asked == 4 * few


def test_logits_are_bounded_by_the_micro_batch(tmp_path: Path) -> None:
    generation = GenerationSettings(group_size=4, max_prompt_tokens=8, max_response_tokens=1000)
    large, small = (
        memory(settings_in(tmp_path, generation=generation, trainer=TrainerSettings(micro_batch_tokens=tokens)))
        for tokens in (2000, 1000)
    )
    assert large.logits == 2 * small.logits


def test_what_is_there_in_turns_is_not_added_up(tmp_path: Path) -> None:
    sizes = {"weights": 1, "gradients": 1, "optimizer": 2, "reference": 1, "critic": 6, "critic_gradients": 2}
    generates = dataclasses.replace(memory(settings_in(tmp_path)), **sizes, key_values=10, logits=5)
    updates = dataclasses.replace(generates, key_values=3)
    assert generates.at_once == 1 + 2 + 1 + 6 + 10
    assert updates.at_once == 1 + 2 + 1 + 6 + (1 + 2 + 5)


def test_a_device_that_is_too_small_is_told(tmp_path: Path) -> None:
    estimate = memory(settings_in(tmp_path))
    assert estimate.fits is True
    assert dataclasses.replace(estimate, device_bytes=estimate.at_once - 1).fits is False
    assert dataclasses.replace(estimate, device_bytes=None).fits is None


def test_the_calls_of_all_validations_are_among_those_of_the_run(tmp_path: Path) -> None:
    data = DataSettings(task="copy_digits", limit=10)
    validation = ValidationSettings(data=data, every=2, at_start=True, rollouts=3, temperature=1.0)
    settings = settings_in(tmp_path, validation=validation)
    check = found(settings)
    assert check.calls.validation == 3 * 10 * 3  # of versions 0, 2 and 3
    assert check.calls.a_run == 3 * 16 + 90
    assert check.cost is not None
    assert check.cost.a_run_usd == pytest.approx(0.01 * (48 + 90))


def test_a_validation_with_longer_responses_needs_room_for_its_keys_and_values(tmp_path: Path) -> None:
    data = DataSettings(task="copy_digits", limit=10)
    plain = settings_in(tmp_path)
    validated = dataclasses.replace(plain, validation=ValidationSettings(data=data, max_response_tokens=100))
    assert memory(validated).key_values > memory(plain).key_values
