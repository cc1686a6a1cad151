"""What one of Megatron's ranks holds, counted by hand; without megatron-core."""

from __future__ import annotations

import pytest
from tiny_training import run_settings

from rewardflow.policy.load_policy import outline_policy
from rewardflow.settings.run_settings import (
    AlgorithmSettings,
    MegatronSettings,
    PolicySettings,
    RuntimeSettings,
    TrainerSettings,
)
from rewardflow.train.backends import HeldBytes
from rewardflow.train.megatron.held_memory import held_by_rank, weights_of_rank
from rewardflow.train.megatron.shape import ModelShape

MODEL = outline_policy(PolicySettings()).model
NUM_WEIGHTS = sum(weight.numel() for weight in MODEL.parameters())
SHAPE = ModelShape.of(MODEL.config)
ENDS = SHAPE.vocabulary * SHAPE.hidden  # of the embedding, or the head


def held(ranks: int, *, autocast: str | None = "bfloat16", kl_coef: float = 0.0, **sizes: int) -> HeldBytes:
    megatron = MegatronSettings(**sizes)
    settings = run_settings(
        trainer=TrainerSettings(backend="megatron", megatron=megatron, autocast=autocast),  # type: ignore[arg-type]
        algorithm=AlgorithmSettings(kl_coef=kl_coef),
        runtime=RuntimeSettings(kind="ray", ranks=ranks),
    )
    return held_by_rank(settings, MODEL.config)


def test_a_rank_alone_has_all_weights() -> None:
    assert weights_of_rank(SHAPE, MegatronSettings()) == NUM_WEIGHTS


def test_the_tensor_axis_cuts_matrices_and_the_pipeline_axis_layers() -> None:
    assert weights_of_rank(SHAPE, MegatronSettings(tensor_parallel=2)) == pytest.approx(NUM_WEIGHTS / 2, rel=0.02)
    stage = weights_of_rank(SHAPE, MegatronSettings(pipeline_parallel=2))
    assert stage == (NUM_WEIGHTS - 2 * ENDS - SHAPE.hidden) // 2 + ENDS + SHAPE.hidden


def test_passes_have_weights_in_bfloat16_and_updates_have_them_in_float32() -> None:
    found = held(1, kl_coef=0.1)
    assert (found.weights, found.reference) == ((2 + 4) * NUM_WEIGHTS, 2 * NUM_WEIGHTS)
    assert (found.gradients, found.optimizer) == (4 * NUM_WEIGHTS, 8 * NUM_WEIGHTS)
    in_float32 = held(1, autocast=None)
    assert (in_float32.weights, in_float32.optimizer, in_float32.reference) == (4 * NUM_WEIGHTS, 8 * NUM_WEIGHTS, 0)


@pytest.mark.parametrize("sizes", [{}, {"context_parallel": 3}])
def test_replicas_and_context_ranks_share_what_updates_need_and_nothing_else(sizes: dict[str, int]) -> None:
    shared = held(3, **sizes)
    own = 4 * NUM_WEIGHTS // 3
    assert (shared.weights, shared.gradients) == (2 * NUM_WEIGHTS + own, 4 * NUM_WEIGHTS)
    assert shared.optimizer == 2 * own
