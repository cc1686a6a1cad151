"""Log-probs and entropy: equal to verl's in value and gradient, in pieces, and exact where plain formulas are not."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rewardflow.algo.token_softmax import token_softmax

LOGITS_NV = torch.tensor([[1.0, 2, 3, 4], [0, 0, 0, 0], [10, 0, -10, 0.5], [-1, 1, -1, 1]])
TOKENS_N = torch.tensor([0, 1, 2, 3])

# verl 0.9.1, torch_functional.entropy_from_logits, and the gradient of its sum weighted by [1, 2, 3, 4].
ENTROPY_N = [0.9475369, 1.3862944, 0.0012856, 1.0584812]
GRAD_NV = [
    [0.079910964, 0.130076215, 0.11670097, -0.32668817],
    [0.0, 0.0, 0.0, 0.0],
    [-0.0034952727, 0.0013616754, 1.2364714e-07, 0.002132759],
    [0.41997427, -0.41997439, 0.41997427, -0.41997439],
]


def entropy_of(logits_NV: Tensor) -> Tensor:
    _, entropy_N = token_softmax(logits_NV, torch.zeros(len(logits_NV), dtype=torch.long), entropy="trained")
    assert entropy_N is not None
    return entropy_N


def test_each_token_has_the_entropy_and_the_gradient_it_has_in_verl() -> None:
    logits_NV = LOGITS_NV.clone().requires_grad_()
    entropy_N = entropy_of(logits_NV)
    torch.testing.assert_close(entropy_N, torch.tensor(ENTROPY_N), atol=1e-6, rtol=1e-5)
    (entropy_N * torch.tensor([1.0, 2, 3, 4])).sum().backward()
    torch.testing.assert_close(logits_NV.grad, torch.tensor(GRAD_NV), atol=1e-6, rtol=1e-5)


@given(
    num_tokens=st.integers(0, 9),
    num_words=st.integers(1, 6),
    tokens_at_a_time=st.integers(1, 10),
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
    trains_entropy=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_pieces_give_what_autograd_gives_for_all_of_it(
    num_tokens: int, num_words: int, tokens_at_a_time: int, temperature: float, trains_entropy: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    given_NV = 3 * torch.randn(num_tokens, num_words, generator=generator, dtype=torch.float64)
    tokens_N = torch.randint(num_words, (num_tokens,), generator=generator)
    weights_N, entropy_weights_N = torch.randn(2, num_tokens, generator=generator, dtype=torch.float64)
    plain_NV, pieces_NV = given_NV.clone().requires_grad_(), given_NV.clone().requires_grad_()

    all_NV = (plain_NV / temperature).log_softmax(-1)
    expected_N = all_NV.gather(-1, tokens_N[:, None]).squeeze(-1)
    expected_entropy_N = -(all_NV.exp() * all_NV).sum(-1)
    log_probs_N, entropy_N = token_softmax(
        pieces_NV,
        tokens_N,
        temperature=temperature,
        entropy="trained" if trains_entropy else "measured",
        logits_at_a_time=tokens_at_a_time * num_words,
    )
    assert entropy_N is not None
    torch.testing.assert_close(log_probs_N, expected_N)
    torch.testing.assert_close(entropy_N, expected_entropy_N)

    loss, expected_loss = (log_probs_N * weights_N).sum(), (expected_N * weights_N).sum()
    if trains_entropy:
        loss = loss + (entropy_N * entropy_weights_N).sum()
        expected_loss = expected_loss + (expected_entropy_N * entropy_weights_N).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    expected_loss.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(pieces_NV.grad, plain_NV.grad)


def test_large_logits_and_words_that_are_ruled_out_do_no_harm() -> None:
    logits_NV = (torch.tensor([[0.0, 0.0, float("-inf")]]) + 1e4).requires_grad_()
    entropy_N = entropy_of(logits_NV)
    entropy_N.sum().backward()
    assert entropy_N.item() == pytest.approx(math.log(2), rel=1e-6)
    torch.testing.assert_close(logits_NV.grad, torch.zeros(1, 3))


def test_a_token_that_is_ruled_out_has_a_log_prob_of_minus_infinity() -> None:
    log_probs_N, _ = token_softmax(torch.tensor([[0.0, float("-inf")]]), torch.tensor([1]))
    assert log_probs_N.item() == -math.inf


def test_half_precision_logits_give_float32_scores_and_a_gradient_of_their_own_kind() -> None:
    logits_NV = LOGITS_NV.bfloat16().requires_grad_()
    log_probs_N, entropy_N = token_softmax(logits_NV, TOKENS_N, entropy="trained")
    assert entropy_N is not None
    (log_probs_N + entropy_N).sum().backward()
    torch.testing.assert_close(entropy_N, torch.tensor(ENTROPY_N), atol=1e-6, rtol=1e-5)
    assert log_probs_N.dtype == torch.float32
    assert logits_NV.grad is not None
    assert logits_NV.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("entropy", ["measured", "trained"])
def test_a_token_of_which_nothing_is_asked_has_no_gradient_even_if_its_logits_are_nan(entropy: str) -> None:
    logits_NV = LOGITS_NV.clone()
    logits_NV[2:] = float("nan")
    logits_NV.requires_grad_()
    log_probs_N, _ = token_softmax(logits_NV, TOKENS_N, entropy=entropy)  # type: ignore[arg-type]
    log_probs_N[:2].sum().backward()
    assert logits_NV.grad is not None
    assert torch.equal(logits_NV.grad[2:], torch.zeros(2, 4))
    assert logits_NV.grad[0].abs().sum() > 0
