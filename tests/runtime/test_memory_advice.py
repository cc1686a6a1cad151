"""What to change where a plan of a device's memory does not fit."""

from __future__ import annotations

import dataclasses

import pytest
from tiny_run import settings_in

from rewardflow.flow.schedule import Schedule
from rewardflow.generate.engine_memory import EngineMemory
from rewardflow.runtime.memory_advice import advice
from rewardflow.runtime.memory_plan import MemoryPlan
from rewardflow.settings.run_settings import (
    GenerationSettings,
    MegatronSettings,
    PolicySettings,
    RunSettings,
    RuntimeSettings,
    TrainerSettings,
    VllmSettings,
)
from rewardflow.train.memory_phase import MemoryPhase

LASTING = {"weights": 4, "optimizer": 8, "reference": 2}
UPDATE = {"gradients": 4, "activations": 30, "logits": 10, "gathered": 5}
SMALL = TrainerSettings(micro_batch_tokens=32, autocast="bfloat16")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> RunSettings:
    settings: RunSettings = settings_in(
        tmp_path_factory.mktemp("run"),
        policy=PolicySettings(gradient_checkpointing=True),
        trainer=SMALL,
        runtime=RuntimeSettings(kind="ray", ranks=2),
        schedule=Schedule(groups_per_step=4),
    )
    return settings


def advice_for(
    settings: RunSettings,
    phases: dict[str, dict[str, int]],
    device_bytes: int,
    *,
    engine: EngineMemory | None = None,
) -> list[str]:
    plan = MemoryPlan(
        device_bytes=device_bytes,
        num_ranks=settings.runtime.ranks,
        num_parameters=1,
        num_trained=1,
        phases=tuple(
            MemoryPhase(name=name, by_kind={**LASTING, **more})  # type: ignore[arg-type]
            for name, more in phases.items()
        ),
        engine=engine,
    )
    return list(advice(settings, plan))


def with_vllm(plain: RunSettings, **changes: float) -> RunSettings:
    generation = GenerationSettings(engine="vllm")
    return dataclasses.replace(plain, generation=generation, vllm=VllmSettings(**changes))  # type: ignore[arg-type]


def test_a_phase_that_is_too_large_is_told_what_is_short_and_what_would_help(plain: RunSettings) -> None:
    told = advice_for(plain, {"update": UPDATE}, 53)
    assert told == [
        "update needs 0.0 GiB of 0.0 GiB: 0.0 GiB are short",
        "trainer.micro_batch_tokens below 19, now 32",
        "trainer.offload: true takes 0.0 GiB off the device in this phase",
        "runtime.ranks: 5 in place of 2, which spreads 0.0 GiB further",
    ]
    wasteful = dataclasses.replace(plain, policy=PolicySettings(), trainer=TrainerSettings())
    told = advice_for(wasteful, {"update": UPDATE}, 53)
    assert told[1].startswith("trainer.autocast: bfloat16 halves activations")
    assert told[2].startswith("policy.gradient_checkpointing: true")


def test_where_a_pass_cannot_be_smaller_shorter_rollouts_are_proposed(plain: RunSettings) -> None:
    """A pass holds a rollout of 13 tokens, even if it is said to hold fewer."""
    told = advice_for(plain, {"update": UPDATE}, 30)
    assert told[1] == (
        "generation.max_prompt_tokens and max_response_tokens of at most 4 together, now 13, "
        "with trainer.micro_batch_tokens no larger"
    )
    assert not any(line.startswith("trainer.micro_batch_tokens") for line in told)


def test_every_phase_that_is_short_is_named_the_largest_first_and_no_change_twice(plain: RunSettings) -> None:
    told = advice_for(plain, {"load": {}, "log-probs": {"activations": 45}, "update": UPDATE}, 53)
    assert [line.split()[0] for line in told if "are short" in line] == ["update", "log-probs"]
    assert "load needs" not in " ".join(told)
    assert len(told) == len(set(told))


def test_a_phase_without_passes_is_not_told_to_make_them_smaller(plain: RunSettings) -> None:
    told = advice_for(plain, {"publish": {"activations": 50}}, 53)
    assert told[0].startswith("publish needs")
    assert not any("micro_batch_tokens" in line for line in told)
    assert "trainer.offload: true takes 0.0 GiB off the device in this phase" in told


def test_generation_with_too_large_a_share_is_told_the_share_that_fits(plain: RunSettings) -> None:
    engine = EngineMemory(reserved=90, weights=10, key_values=1, buffers=0, sleeps=True)
    told = advice_for(with_vllm(plain, memory_share=0.9, sleep=True), {"generate": {"engine": 90}}, 100, engine=engine)
    assert told[0].startswith("generate needs")
    assert "vllm.memory_share: 0.86 or less, now 0.9" in told
    assert any(line.startswith("schedule.placement: separate") for line in told)
    assert not any("vllm.sleep" in line or "activations" in line for line in told)


def test_no_share_is_proposed_that_could_not_hold_the_engine(plain: RunSettings) -> None:
    engine = EngineMemory(reserved=90, weights=88, key_values=1, buffers=0, sleeps=True)
    told = advice_for(with_vllm(plain, memory_share=0.9, sleep=True), {"generate": {"engine": 90}}, 100, engine=engine)
    assert not any("vllm.memory_share" in line for line in told)
    assert any(line.startswith("schedule.placement: separate") for line in told)


def test_an_engine_that_is_awake_in_an_update_is_told_to_sleep(plain: RunSettings) -> None:
    engine = EngineMemory(reserved=50, weights=10, key_values=1, buffers=0, sleeps=False)
    told = advice_for(with_vllm(plain), {"update": {**UPDATE, "engine": 50}}, 100, engine=engine)
    assert any(line.startswith("vllm.sleep: true takes") for line in told)


def test_rows_that_are_decoded_together_with_the_policys_own_model_may_be_fewer(plain: RunSettings) -> None:
    told = advice_for(plain, {"generate": {"key_values": 100}}, 64)
    assert "generation.max_sequences below 128, now 256" in told
    assert any(line.startswith("schedule.placement: separate") for line in told)


def test_in_one_process_a_separate_generator_is_not_proposed_because_it_would_be_on_the_same_device(
    plain: RunSettings,
) -> None:
    one_process = dataclasses.replace(plain, runtime=RuntimeSettings())
    told = advice_for(one_process, {"generate": {"key_values": 100}}, 64)
    assert "generation.max_sequences below 128, now 256" in told
    assert not any("placement" in line for line in told)


def test_ranks_that_the_sizes_of_a_model_make_up_are_explained(plain: RunSettings) -> None:
    megatron = TrainerSettings(backend="megatron", megatron=MegatronSettings(tensor_parallel=2))
    told = advice_for(dataclasses.replace(plain, trainer=megatron), {"update": {}}, 13)
    assert told[-1] == "more ranks for one model, now 2 ranks: tensor 2 x pipeline 1 x context 1 x data 1"
