"""The memory of a rank, measured on the trainer itself, for a tiny model whose parts can be counted by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist
from tiny_training import run_settings

from rewardflow.policy.load_policy import outline_policy
from rewardflow.settings.run_settings import (
    AlgorithmSettings,
    GenerationSettings,
    LoraSettings,
    PolicySettings,
    RunSettings,
    TrainerSettings,
)
from rewardflow.train.fsdp2.memory_rehearsal import rehearse_memory
from rewardflow.train.memory_phase import MemoryPhase

POLICY = PolicySettings(gradient_checkpointing=True, tiny_layers=1)
SIZE = sum(one.numel() * 4 for one in outline_policy(POLICY).model.parameters())
CRITIC = sum(one.numel() * 4 for one in outline_policy(POLICY).model.base_model.parameters())


def settings(**changes: object) -> RunSettings:
    plain = {
        "policy": POLICY,
        "trainer": TrainerSettings(autocast="bfloat16", micro_batch_tokens=64),
        "generation": GenerationSettings(max_prompt_tokens=16, max_response_tokens=16),
    }
    return run_settings(**{**plain, **changes})


@pytest.fixture(scope="module")
def with_all() -> dict[str, MemoryPhase]:
    algorithm = AlgorithmSettings(advantage="gae", kl_coef=0.1)
    return {phase.name: phase for phase in rehearse_memory(settings(algorithm=algorithm), num_ranks=2)}


def test_every_phase_of_a_step_is_measured(with_all: dict[str, MemoryPhase]) -> None:
    assert list(with_all) == ["load", "log-probs", "reference", "values", "update", "publish", "save"]
    assert not any(phase.is_calculated for phase in with_all.values())
    assert not dist.is_initialized()


def test_a_rank_has_its_part_of_everything_that_lasts(with_all: dict[str, MemoryPhase]) -> None:
    kinds = with_all["update"].by_kind
    small = 0.02 * SIZE  # the counters of Adam, and rows that are not even
    assert kinds["weights"] == pytest.approx(SIZE / 2, abs=small)
    assert kinds["gradients"] == pytest.approx(SIZE / 2, abs=small)
    assert kinds["optimizer"] == pytest.approx(SIZE, abs=small)
    assert kinds["reference"] == pytest.approx(SIZE / 4, abs=small)  # bfloat16
    assert kinds["critic"] >= 3 * CRITIC / 2 - small


def test_log_probs_and_values_are_computed_beside_adams_state_and_gradients(with_all: dict[str, MemoryPhase]) -> None:
    for name in ("log-probs", "reference", "values"):
        kinds = with_all[name].by_kind
        assert kinds["optimizer"] == pytest.approx(SIZE, rel=0.02)
        assert kinds["gradients"] == pytest.approx(SIZE / 2, rel=0.02)
        assert kinds["critic"] >= 3 * CRITIC / 2
        assert with_all[name].num_bytes < with_all["update"].num_bytes


def test_loading_never_holds_a_whole_model(with_all: dict[str, MemoryPhase]) -> None:
    kinds = with_all["load"].by_kind
    lasting = SIZE / 2 + SIZE / 4 + CRITIC / 2
    assert kinds["weights"] == pytest.approx(lasting, rel=0.1)
    assert with_all["load"].num_bytes < 1.25 * lasting


def test_publishing_holds_whole_weights_one_at_a_time(with_all: dict[str, MemoryPhase]) -> None:
    publish, save = with_all["publish"], with_all["save"]
    largest = max(one.numel() * 4 for one in outline_policy(POLICY).model.parameters())
    # The one that is gathered, what it is gathered from, and the one before, which the consumer still holds.
    assert save.num_bytes + largest <= publish.num_bytes <= save.num_bytes + 3.1 * largest


def test_one_rank_alone_has_everything() -> None:
    kinds = {phase.name: phase for phase in rehearse_memory(settings(), num_ranks=1)}["update"].by_kind
    assert (kinds["weights"], kinds["gradients"]) == pytest.approx((SIZE, SIZE), rel=0.001)
    assert kinds["optimizer"] == pytest.approx(2 * SIZE, rel=0.02)


def test_adapters_have_gradients_and_moments_and_the_reference_takes_nothing() -> None:
    policy = PolicySettings(gradient_checkpointing=True, tiny_layers=1, lora=LoraSettings(rank=4))
    given = settings(policy=policy, algorithm=AlgorithmSettings(kl_coef=0.1))
    phases = {phase.name: phase for phase in rehearse_memory(given, num_ranks=2)}
    assert "reference" in phases
    assert not any("reference" in phase.by_kind for phase in phases.values())
    kinds = phases["update"].by_kind
    adapters = kinds["gradients"]
    assert 0 < adapters < 0.1 * SIZE
    assert kinds["optimizer"] == pytest.approx(2 * adapters, rel=0.1)
    assert kinds["weights"] == pytest.approx(SIZE / 4 + adapters, rel=0.02)  # the base is in bfloat16


def test_a_critic_beside_adapters_in_bfloat16_trains_in_float32() -> None:
    lora = PolicySettings(dtype="bfloat16", gradient_checkpointing=True, tiny_layers=1, lora=LoraSettings(rank=4))
    given = settings(policy=lora, algorithm=AlgorithmSettings(advantage="gae"))
    phases = {phase.name: phase for phase in rehearse_memory(given, num_ranks=1)}
    assert phases["save"].by_kind["critic"] == pytest.approx(3 * CRITIC, rel=0.02)  # with Adam's moments
    assert phases["save"].by_kind["weights"] < 0.6 * SIZE


def test_a_model_whose_head_is_its_embedding_is_followed_on_one_device(tmp_path: Path) -> None:
    policy = outline_policy(POLICY)
    policy.model.config.tie_word_embeddings = True
    policy.model.config.save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    given = settings(policy=PolicySettings(model=str(tmp_path), gradient_checkpointing=True))
    phases = {phase.name: phase for phase in rehearse_memory(given, num_ranks=1)}
    num_weights = sum(one.numel() for one in outline_policy(given.policy).model.parameters())
    assert phases["update"].by_kind["weights"] == 4 * num_weights
