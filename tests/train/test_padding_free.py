"""Passes without padding find what padded ones find, no row sees another, and models that could let it are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_training import batch, critic_part, random_samples, rollout, tiny_model, tiny_trainer, valued
from torch import Tensor
from transformers import GptOssConfig, GptOssForCausalLM, OPTConfig, OPTForCausalLM, PreTrainedModel

from rewardflow.errors import InvalidInput
from rewardflow.settings.run_settings import AlgorithmSettings, CriticSettings, TrainerSettings
from rewardflow.train.packing import PackedRows, TokenRow, pack
from rewardflow.train.padding_free import check_keeps_rows_apart, check_rows_stay_apart
from rewardflow.train.token_log_probs import token_log_probs

PADDED = TrainerSettings(lr=1e-2, eps=1e-3, micro_batch_tokens=32)
ALGORITHM = AlgorithmSettings(kl_coef=0.3, entropy_coef=0.05)
CPU = torch.device("cpu")


def trained(settings: TrainerSettings, critic: CriticSettings | None = None) -> dict[str, Any]:
    """What two steps leave behind."""
    samples = [valued(random_samples(11, seed=step), seed=step) for step in range(2)]
    rollouts = [one.rollout for one in samples[0]]
    part = None if critic is None else critic_part(critic)

    async def run() -> dict[str, Any]:
        for step, given in enumerate(samples):
            async with trainer.step(step):
                await trainer.forward_backward(batch(given))
                report = await trainer.optim_step()
        return {
            "grad_norm": report.grad_norm,
            "log_probs": torch.cat(list(await trainer.log_probs(rollouts, "policy"))),
            "reference": torch.cat(list(await trainer.log_probs(rollouts, "reference"))),
            "values": None if part is None else torch.cat(list(await trainer.values(rollouts))),
            "num_passes": trainer.statistics().num_passes,
        }

    models = {"reference": tiny_model(seed=1), "critic": part}
    with tiny_trainer(trainer=settings, algorithm=ALGORITHM, **models) as trainer:
        return asyncio.run(run())


@pytest.mark.parametrize("critic", [None, CriticSettings(lr=1e-2, eps=1e-3)], ids=["alone", "critic"])
def test_two_steps_without_padding_are_two_steps_with_padding(critic: CriticSettings | None) -> None:
    padded, joined = trained(PADDED, critic), trained(replace(PADDED, padding_free=True), critic)
    assert joined["num_passes"] < padded["num_passes"]
    assert joined["grad_norm"] == pytest.approx(padded["grad_norm"], rel=1e-4)
    for name in ("log_probs", "reference", "values"):
        if padded[name] is not None:
            torch.testing.assert_close(joined[name], padded[name], rtol=1e-4, atol=1e-4)


def joined_log_probs(model: torch.nn.Module, *rows: list[int]) -> list[Tensor]:
    packed = pack([TokenRow.of(rollout(row[:1], row[1:])) for row in rows], CPU, padding_free=True)
    with torch.no_grad():
        scores = token_log_probs(model.eval(), packed, temperature=1.0)
    return list(torch.split(scores.log_probs_N, [len(row) - 1 for row in rows]))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("window", [None, 3])
def test_no_row_sees_another(attention: str, window: int | None) -> None:
    sliding = {} if window is None else {"use_sliding_window": True, "sliding_window": window, "max_window_layers": 0}
    model = tiny_model(attn_implementation=attention, **sliding)
    check_keeps_rows_apart(model)
    rows = [3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5, 8, 9, 7]
    found = joined_log_probs(model, *rows)
    changed = joined_log_probs(model, [2, 7, 1, 8, 2], *rows[1:])
    assert not torch.allclose(found[0], changed[0])
    for one, other in zip(found[1:], changed[1:], strict=True):
        assert torch.equal(one, other)
    for one, row in zip(found, rows, strict=True):
        torch.testing.assert_close(one, joined_log_probs(model, row)[0], rtol=1e-4, atol=1e-5)


def test_attention_of_somebody_else_is_refused() -> None:
    model = tiny_model()
    model.config._attn_implementation = "my_kernel"
    with pytest.raises(InvalidInput, match=r"trainer.padding_free needs attention .* got my_kernel"):
        check_keeps_rows_apart(model)


def test_a_model_with_layers_that_carry_a_state_is_refused() -> None:
    model = tiny_model()
    model.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(InvalidInput, match="with linear_attention"):
        tiny_trainer(model, trainer=replace(PADDED, padding_free=True)).__enter__()


def masked_without_positions() -> PreTrainedModel:
    """Of the newer models that make their mask without positions, so that a row sees those before it."""
    sizes = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2}
    return GptOssForCausalLM(GptOssConfig(**sizes, **heads, initializer_range=0.3))


def masked_without_positions_for_long() -> PreTrainedModel:
    sizes = {"vocab_size": 32, "hidden_size": 32, "ffn_dim": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    return OPTForCausalLM(OPTConfig(**sizes, word_embed_proj_dim=32, init_std=0.3))


@pytest.mark.parametrize("build", [masked_without_positions, masked_without_positions_for_long])
def test_a_loaded_model_that_lets_rows_see_each_other_is_refused(build: Callable[[], PreTrainedModel]) -> None:
    torch.manual_seed(0)
    model = build()
    check_keeps_rows_apart(model)  # nothing in its name or configuration tells
    with (
        tiny_trainer(model, trainer=replace(PADDED, padding_free=True)) as trainer,
        pytest.raises(InvalidInput, match=r"gives a row other log-probs after another row"),
    ):
        trainer.check_passes()
    with tiny_trainer(model, trainer=PADDED) as trainer:
        trainer.check_passes()


@pytest.mark.parametrize("autocast", [None, "bfloat16"])
def test_a_loaded_model_that_keeps_rows_apart_is_accepted(autocast: Any) -> None:
    settings = replace(PADDED, padding_free=True, autocast=autocast)
    with tiny_trainer(tiny_model(), trainer=settings) as trainer:
        trainer.check_passes()


def test_a_row_whose_positions_go_on_from_the_row_before_is_found_out() -> None:
    model = tiny_model()

    def log_probs(packed: PackedRows) -> Tensor:
        counted_on = torch.arange(packed.input_ids_BL.shape[1])[None]
        return token_log_probs(model.eval(), replace(packed, position_ids_BL=counted_on), temperature=1.0).log_probs_N

    with pytest.raises(InvalidInput, match="keeps rows apart by their positions"):
        check_rows_stay_apart(log_probs, CPU, is_rounded=False)
