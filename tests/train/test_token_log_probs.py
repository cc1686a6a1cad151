"""Log-probs of sampled tokens, against a row-by-row computation with nothing clever in it."""

from typing import Any

import pytest
import torch
from tiny_training import TEMPERATURE, VOCABULARY, random_samples, rollout, tiny_model
from torch import Tensor, nn

from rewardflow.errors import InvalidInput
from rewardflow.train.packing import PackedRows, TokenRow, pack
from rewardflow.train.token_log_probs import token_log_probs

CPU = torch.device("cpu")
ROWS = [TokenRow.of(sample.rollout) for sample in random_samples(7)]
ROWS.append(TokenRow.of(rollout([1, 2], [3, 4, 5, 6], response_mask=[0, 0, 1, 0, 1, 1])))


def row_by_row(model: nn.Module, rows: list[TokenRow], temperature: float) -> tuple[Tensor, Tensor]:
    log_probs, entropy = [], []
    for row in rows:
        logits_LV = model(input_ids=torch.tensor([row.token_ids])).logits[0] / temperature
        all_LV = logits_LV.log_softmax(-1)
        for position in row.sampled:
            log_probs.append(all_LV[position - 1, row.token_ids[position]])
            entropy.append(-(all_LV[position - 1].exp() * all_LV[position - 1]).sum())
    return torch.stack(log_probs), torch.stack(entropy)


def gradient(model: nn.Module, value: Tensor) -> Tensor:
    return torch.cat([part.flatten() for part in torch.autograd.grad(value, list(model.parameters()))])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("temperature", [1.0, TEMPERATURE])
def test_padded_rows_have_the_log_probs_and_entropy_of_each_row_alone(attention: str, temperature: float) -> None:
    model = tiny_model(attn_implementation=attention)
    expected, expected_entropy = row_by_row(model, ROWS, temperature)
    scores = token_log_probs(model, pack(ROWS, CPU), temperature=temperature, entropy="trained")
    assert scores.entropy_N is not None
    torch.testing.assert_close(scores.log_probs_N, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(scores.entropy_N, expected_entropy, rtol=1e-5, atol=1e-5)


def test_gradients_are_those_of_each_row_alone() -> None:
    model = tiny_model(tie_word_embeddings=True)
    factors = torch.linspace(-1.0, 2.0, sum(len(row.sampled) for row in ROWS))
    log_probs, entropy = row_by_row(model, ROWS, TEMPERATURE)
    expected = gradient(model, (factors * log_probs + factors.flip(0) * entropy).sum())
    scores = token_log_probs(model, pack(ROWS, CPU), temperature=TEMPERATURE, entropy="trained")
    assert scores.entropy_N is not None
    found = gradient(model, (factors * scores.log_probs_N + factors.flip(0) * scores.entropy_N).sum())
    assert (found - expected).norm() <= 1e-5 * expected.norm()


def test_a_few_logits_at_a_time_give_the_same_numbers() -> None:
    model = tiny_model()
    whole = token_log_probs(model, pack(ROWS, CPU), temperature=TEMPERATURE)
    parts = token_log_probs(model, pack(ROWS, CPU), temperature=TEMPERATURE, logits_at_a_time=3 * VOCABULARY)
    assert torch.equal(whole.log_probs_N, parts.log_probs_N)
    assert whole.entropy_N is None


def test_logits_are_computed_for_sampled_tokens_only_and_attention_needs_no_mask() -> None:
    model = tiny_model()
    packed = pack(ROWS, CPU)
    shapes: list[tuple[int, ...]] = []
    masks: list[Any] = []
    model.lm_head.register_forward_hook(lambda _module, _args, output: shapes.append(tuple(output.shape)))
    model.model.layers[0].self_attn.register_forward_pre_hook(
        lambda _module, _args, kwargs: masks.append(kwargs["attention_mask"]), with_kwargs=True
    )
    token_log_probs(model, packed, temperature=1.0)
    assert shapes == [(sum(len(row.sampled) for row in ROWS), VOCABULARY)]
    assert masks == [None]


def test_the_hook_that_picks_sampled_tokens_is_gone_afterwards() -> None:
    model = tiny_model()
    token_log_probs(model, pack(ROWS, CPU), temperature=1.0)
    assert model(input_ids=torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, VOCABULARY)


def test_autocast_computes_in_bfloat16_and_takes_the_softmax_in_float32() -> None:
    model = tiny_model()
    dtypes: list[torch.dtype] = []
    model.lm_head.register_forward_hook(lambda _module, _args, output: dtypes.append(output.dtype))
    scores = token_log_probs(model, pack(ROWS, CPU), temperature=1.0, autocast=torch.bfloat16)
    assert dtypes == [torch.bfloat16]
    assert scores.log_probs_N.dtype == torch.float32
    torch.testing.assert_close(scores.log_probs_N, row_by_row(model, ROWS, 1.0)[0], rtol=0.1, atol=0.3)


def test_a_model_that_makes_its_logits_some_other_way_is_refused() -> None:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = tiny_model()

        def get_output_embeddings(self) -> nn.Module:
            return nn.Linear(1, 1)

        def forward(self, **inputs: Any) -> Any:
            return self.inner(**inputs)

    packed: PackedRows = pack(ROWS, CPU)
    with pytest.raises(InvalidInput, match=r"get_output_embeddings\(\)"):
        token_log_probs(Other(), packed, temperature=1.0)


def test_entropy_that_is_only_measured_has_the_same_value_and_no_gradient() -> None:
    model = tiny_model()
    packed = pack(ROWS, CPU)
    trained = token_log_probs(model, packed, temperature=1.0, entropy="trained")
    measured = token_log_probs(model, packed, temperature=1.0, entropy="measured")
    assert trained.entropy_N is not None
    assert measured.entropy_N is not None
    assert torch.equal(trained.entropy_N, measured.entropy_N)
    assert trained.entropy_N.requires_grad
    assert not measured.entropy_N.requires_grad
