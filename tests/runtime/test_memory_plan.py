"""The plan of a device's memory: phases against what there is, and what to change where it is too little."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from tiny_run import settings_in

from rewardflow.flow.schedule import Schedule
from rewardflow.generate.engines import engine_factory
from rewardflow.policy.load_policy import outline_policy
from rewardflow.runtime.memory_estimate import MemoryEstimate, estimate_memory, estimate_rank_memory
from rewardflow.runtime.memory_plan import CompletedSettings, MemoryPlan, complete_for, plan_memory, planned
from rewardflow.settings.device_defaults import PASS_TOKENS_KEY
from rewardflow.settings.run_settings import (
    AlgorithmSettings,
    GenerationSettings,
    MegatronSettings,
    PolicySettings,
    RunSettings,
    RuntimeSettings,
    TrainerSettings,
    VllmSettings,
)
from rewardflow.train.memory_phase import MemoryPhase

GIB = 2**30
POLICY = PolicySettings(gradient_checkpointing=True, tiny_layers=1)
SHORT = GenerationSettings(group_size=4, max_prompt_tokens=8, max_response_tokens=8)
SMALL = TrainerSettings(micro_batch_tokens=32, autocast="bfloat16")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> RunSettings:
    ray = RuntimeSettings(kind="ray", ranks=2)
    algorithm = AlgorithmSettings(kl_coef=0.1)
    settings: RunSettings = settings_in(
        tmp_path_factory.mktemp("run"),
        policy=POLICY,
        generation=SHORT,
        trainer=SMALL,
        runtime=ray,
        algorithm=algorithm,
        schedule=Schedule(groups_per_step=4, placement="separate"),
    )
    return settings


PHASES = tuple(
    MemoryPhase(name=name, by_kind={"weights": 4, "optimizer": 8, "reference": 2, **more})
    for name, more in (
        ("load", {}),
        ("reference", {"activations": 3}),
        ("update", {"gradients": 4, "activations": 30, "logits": 10, "gathered": 5}),
        ("publish", {"gathered": 2}),
    )
)


def kinds(plan: MemoryPlan, name: str) -> dict[str, int]:
    return {phase.name: dict(phase.by_kind) for phase in plan.phases}[name]


def estimate_of(settings: RunSettings) -> MemoryEstimate:
    return estimate_rank_memory(settings, outline_policy(settings.policy))


def plan_of(settings: RunSettings, device_bytes: int) -> MemoryPlan:
    engine = engine_factory(settings).memory(settings, outline_policy(settings.policy), device_bytes)
    return planned(settings, estimate_of(settings), PHASES, device_bytes, engine=engine)


def colocated_with(plain: RunSettings, **vllm: Any) -> RunSettings:
    return dataclasses.replace(
        plain,
        schedule=Schedule(groups_per_step=4),
        generation=dataclasses.replace(SHORT, engine="vllm"),
        vllm=VllmSettings(**vllm),
    )


def test_a_plan_has_every_phase_of_a_rank_as_measured(plain: RunSettings) -> None:
    plan = plan_memory(plain, GIB)
    assert [phase.name for phase in plan.phases] == ["load", "log-probs", "reference", "update", "publish", "save"]
    assert plan.fits
    assert plan.advice == ()
    assert plan.to_json()["phases"][3]["bytes"] == plan.largest.num_bytes
    assert not any(phase.is_calculated for phase in plan.phases)


def test_offload_keeps_the_reference_off_the_device_in_an_update_and_more_between_steps(plain: RunSettings) -> None:
    plan = plan_of(dataclasses.replace(plain, trainer=dataclasses.replace(SMALL, offload=True)), GIB)
    assert "reference" in kinds(plan, "reference")
    assert "reference" not in kinds(plan, "update")
    assert "optimizer" in kinds(plan, "update")
    assert not {"reference", "optimizer"} & kinds(plan, "publish").keys()


# -- an engine on the same device --


def test_a_copy_that_generates_in_the_same_process_counts_beside_training(plain: RunSettings) -> None:
    one_process = dataclasses.replace(plain, runtime=RuntimeSettings())
    estimate = estimate_memory(one_process, outline_policy(one_process.policy), torch.device("cpu"))
    plan = planned(one_process, estimate, PHASES, GIB, engine=None)
    for name in ("update", "publish"):
        assert kinds(plan, name)["engine"] == 4 * plan.num_parameters
    assert kinds(plan, "update")["key_values"] == estimate.key_values > 0
    assert "key_values" not in kinds(plan, "publish")  # which waits for generation to end
    assert kinds(plan, "load") == dict(PHASES[0].by_kind)
    assert "engine" not in kinds(plan_of(plain, GIB), "update")  # a rank of a cluster: the copy is elsewhere
    short = planned(one_process, estimate, PHASES, estimate.generator_copy + 100, engine=None)
    assert any(line.startswith("generation.max_sequences below") for line in short.advice)
    assert any(line.startswith("schedule.placement: colocated takes") for line in short.advice)


@pytest.mark.parametrize("sleeps", [False, True])
def test_an_engine_on_the_same_device_has_its_share_unless_it_sleeps(plain: RunSettings, sleeps: bool) -> None:
    plan = plan_of(colocated_with(plain, memory_share=0.5, sleep=sleeps), GIB)
    assert kinds(plan, "generate")["engine"] == GIB // 2
    assert kinds(plan, "update").get("engine", 0) == (0 if sleeps else GIB // 2)
    assert [phase.name for phase in plan.phases if phase.is_calculated] == ["generate"]


def test_publishing_wakes_the_weights_of_an_engine_and_takes_buffers_to_send_them(plain: RunSettings) -> None:
    asleep = plan_of(colocated_with(plain, memory_share=0.5, sleep=True, transfer="ipc"), 4 * GIB)
    num_weights = asleep.num_parameters
    assert kinds(asleep, "publish")["engine"] == 2 * num_weights  # bfloat16
    assert kinds(asleep, "publish")["buffers"] == GIB  # of vLLM
    assert "buffers" not in kinds(asleep, "update")
    awake = plan_of(colocated_with(plain, memory_share=0.5), 4 * GIB)
    assert kinds(awake, "publish")["engine"] == 2 * GIB
    assert kinds(awake, "publish")["buffers"] == 2 * num_weights  # a piece is at most 512 MiB


def test_a_share_that_cannot_hold_the_engines_weights_does_not_fit_though_every_phase_does(plain: RunSettings) -> None:
    plan = plan_of(colocated_with(plain, memory_share=0.05, sleep=True), 2**20)
    assert not plan.short_phases
    assert not plan.fits
    assert plan.engine is not None
    assert plan.engine.short == plan.engine.weights + plan.engine.key_values - 2**20 // 20
    assert plan.advice[0].startswith("the engine reserves")
    least = (plan.engine.weights + plan.engine.key_values) / 2**20
    shares = [float(line.split()[3].rstrip(",")) for line in plan.advice if "vllm.memory_share: more than" in line]
    assert shares == [pytest.approx(least, abs=0.01)]
    assert "schedule.placement: separate" in plan.advice[-1]
    assert plan_of(colocated_with(plain, memory_share=shares[0] + 0.01, sleep=True), 2**20).fits


def test_an_engine_on_devices_of_its_own_must_fit_them_too(plain: RunSettings) -> None:
    separate = dataclasses.replace(plain, generation=dataclasses.replace(SHORT, engine="vllm"))
    assert plan_of(separate, 2**20).fits
    short = plan_of(separate, 2**15)
    assert not short.fits
    assert "vllm.tensor_parallel: more than 1" in short.advice[-1]
    assert "generate" not in [phase.name for phase in short.phases]


# -- what cannot be rehearsed --


def test_what_cannot_run_without_data_is_calculated_and_says_so(plain: RunSettings) -> None:
    megatron = TrainerSettings(backend="megatron", megatron=MegatronSettings(tensor_parallel=2))
    plan = plan_memory(dataclasses.replace(plain, trainer=megatron), GIB)
    assert [(phase.name, phase.is_calculated) for phase in plan.phases] == [("update", True)]
    found = kinds(plan, "update")
    assert found["weights"] == found["gradients"] * 6 // 4  # in bfloat16 and in float32
    assert found["optimizer"] == 2 * found["gradients"]
    assert plan.notes == ("activations are not in this plan: the back end does not run without data",)


def test_attention_that_needs_a_gpu_is_planned_with_one_that_does_not_and_the_plan_says_so(plain: RunSettings) -> None:
    policy = dataclasses.replace(POLICY, attention="flash_attention_2")
    plan = plan_memory(dataclasses.replace(plain, policy=policy), GIB)
    same = plan_memory(dataclasses.replace(plain, policy=dataclasses.replace(POLICY, attention="sdpa")), GIB)
    assert plan.phases == same.phases
    assert plan.notes == ("policy.attention flash_attention_2 is planned as sdpa",)
    assert same.notes == ()


# -- the size of a pass --


@pytest.fixture(scope="module")
def left_open(plain: RunSettings) -> RunSettings:
    """Leaves the size of a pass to the device, whose usual 8,192 tokens are more than the steps below have."""
    one = RuntimeSettings()
    trainer = dataclasses.replace(SMALL, micro_batch_tokens=None)
    return dataclasses.replace(plain, trainer=trainer, runtime=one, algorithm=AlgorithmSettings())


def test_a_pass_that_is_left_to_the_device_is_fitted_to_its_memory(left_open: RunSettings) -> None:
    usual = plan_memory(left_open, GIB)
    assert usual.fits
    assert usual.chosen[PASS_TOKENS_KEY] == 8192
    small = usual.largest.num_bytes // 2
    plan = plan_memory(left_open, small)
    assert plan.fits
    assert 16 <= plan.chosen[PASS_TOKENS_KEY] < 8192
    given = dataclasses.replace(left_open, trainer=dataclasses.replace(SMALL, micro_batch_tokens=8192))
    assert not plan_memory(given, small).fits
    assert PASS_TOKENS_KEY not in plan_memory(given, small).chosen


def test_a_run_and_a_check_take_the_number_of_the_plan(left_open: RunSettings) -> None:
    small = plan_memory(left_open, GIB).largest.num_bytes // 2
    completed = complete_for(left_open, "accelerator", small)
    assert completed.settings.trainer.pass_tokens == plan_memory(left_open, small).chosen[PASS_TOKENS_KEY]
    assert completed.fitted_to_bytes == small
    assert complete_for(completed.settings, "accelerator", small).settings == completed.settings


def test_a_pass_keeps_its_usual_size_where_memory_is_unknown_or_cannot_be_planned(plain: RunSettings) -> None:
    unknown = complete_for(dataclasses.replace(plain, trainer=TrainerSettings()), "accelerator", None)
    assert (unknown.settings.trainer.pass_tokens, unknown.fitted_to_bytes) == (8192, None)
    megatron = TrainerSettings(backend="megatron", megatron=MegatronSettings(tensor_parallel=2))
    planned_not = complete_for(dataclasses.replace(plain, trainer=megatron), "accelerator", 2**20)
    assert (planned_not.settings.trainer.pass_tokens, planned_not.fitted_to_bytes) == (8192, None)


def test_a_model_that_cannot_be_rehearsed_still_gets_its_settings(
    plain: RunSettings, caplog: pytest.LogCaptureFixture
) -> None:
    absent = dataclasses.replace(plain, trainer=TrainerSettings(), policy=PolicySettings(model="not/there"))
    completed = complete_for(absent, "accelerator", GIB)
    assert completed.settings.trainer.pass_tokens == 8192
    assert "could not be planned" in caplog.text


def test_on_a_cpu_nothing_is_fitted(plain: RunSettings) -> None:
    on_cpu = dataclasses.replace(plain, trainer=TrainerSettings())
    assert complete_for(on_cpu, "cpu", 2**20) == CompletedSettings(settings=on_cpu)
