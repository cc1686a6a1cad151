"""Log-probs of sampled tokens, against a row-by-row computation with nothing clever in it."""

from typing import Any

import pytest
import torch
from tiny_training import TEMPERATURE, VOCABULARY, random_samples, rollout, tiny_model
from torch import Tensor, nn

from rewardflow.algo.head_softmax import KEPT_LOGITS
from rewardflow.algo.token_softmax import Entropy
from rewardflow.errors import InvalidInput
from rewardflow.train.packing import PackedRows, TokenRow, pack
from rewardflow.train.token_log_probs import hidden_states, token_log_probs

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


@pytest.mark.parametrize("entropy", ["none", "measured", "trained"])
@pytest.mark.parametrize("is_tied", [False, True])
def test_a_few_words_at_a_time_give_the_same_numbers_and_gradients(entropy: Entropy, is_tied: bool) -> None:
    model = tiny_model(tie_word_embeddings=is_tied)
    found = []
    for kept_logits in (KEPT_LOGITS, 3 * sum(len(row.sampled) for row in ROWS)):
        scores = token_log_probs(
            model, pack(ROWS, CPU), temperature=TEMPERATURE, entropy=entropy, kept_logits=kept_logits
        )
        factors = torch.linspace(-1.0, 2.0, len(scores.log_probs_N))
        total = (factors * scores.log_probs_N).sum()
        if scores.entropy_N is not None and scores.entropy_N.requires_grad:
            total = total + (factors.flip(0) * scores.entropy_N).sum()
        found.append((scores, gradient(model, total)))
    (whole, expected), (parts, gradients) = found
    torch.testing.assert_close(parts.log_probs_N, whole.log_probs_N)
    assert (parts.entropy_N is None) == (entropy == "none")
    if parts.entropy_N is not None:
        torch.testing.assert_close(parts.entropy_N, whole.entropy_N)
    assert (gradients - expected).norm() <= 1e-5 * expected.norm()


def test_the_head_runs_once_for_sampled_tokens_only_and_attention_needs_no_mask() -> None:
    model = tiny_model()
    packed = pack(ROWS, CPU)
    shapes: list[tuple[int, ...]] = []
    masks: list[Any] = []
    model.lm_head.register_forward_hook(lambda _module, _args, output: shapes.append(tuple(output.shape)))
    model.model.layers[0].self_attn.register_forward_pre_hook(
        lambda _module, _args, kwargs: masks.append(kwargs["attention_mask"]), with_kwargs=True
    )
    token_log_probs(model, packed, temperature=1.0, entropy="measured")
    assert shapes == [(2, sum(len(row.sampled) for row in ROWS))]
    assert masks == [None]


@pytest.mark.parametrize("kept_logits", [KEPT_LOGITS, 1])
def test_a_model_that_changes_what_its_head_returns_keeps_its_say(kept_logits: int) -> None:
    class Capped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = tiny_model()

        def get_output_embeddings(self) -> nn.Module:
            return self.inner.lm_head

        def forward(self, **inputs: Any) -> Any:
            output = self.inner(**inputs)
            output.logits = torch.tanh(output.logits / 2) * 2
            return output

    model = Capped()
    expected, _ = row_by_row(model, ROWS, TEMPERATURE)
    for _ in range(2):
        scores = token_log_probs(model, pack(ROWS, CPU), temperature=TEMPERATURE, kept_logits=kept_logits)
        torch.testing.assert_close(scores.log_probs_N, expected, rtol=1e-5, atol=1e-5)


def test_hidden_states_are_those_that_log_probs_come_from() -> None:
    model = tiny_model()
    packed = pack(ROWS, CPU)
    expected = token_log_probs(model, packed, temperature=1.0).hidden_ND
    assert expected is not None
    assert torch.equal(hidden_states(model, packed), expected)


def test_the_head_computes_logits_again_afterwards() -> None:
    model = tiny_model()
    token_log_probs(model, pack(ROWS, CPU), temperature=1.0)
    assert model(input_ids=torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, VOCABULARY)


def test_autocast_computes_in_bfloat16_and_takes_the_softmax_in_float32() -> None:
    model = tiny_model()
    expected = row_by_row(model, ROWS, 1.0)[0]
    for kept_logits in (KEPT_LOGITS, 200):
        scores = token_log_probs(
            model, pack(ROWS, CPU), temperature=1.0, autocast=torch.bfloat16, kept_logits=kept_logits
        )
        assert scores.log_probs_N.dtype == torch.float32
        assert not torch.equal(scores.log_probs_N, expected)
        torch.testing.assert_close(scores.log_probs_N, expected, rtol=0.1, atol=0.3)


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
