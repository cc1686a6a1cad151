"""Entropy: equal to verl's in value and gradient, in chunks, and exact where its formula is not."""

from __future__ import annotations

import math

import pytest
import torch

from rewardflow.algo.entropy import CHUNK_TOKENS, token_entropy

LOGITS_BTV = torch.tensor([[[1.0, 2, 3, 4], [0, 0, 0, 0]], [[10, 0, -10, 0.5], [-1, 1, -1, 1]]])

# verl 0.9.1, torch_functional.entropy_from_logits, and the gradient of its sum weighted by [[1, 2], [3, 4]].
ENTROPY_BT = [[0.9475369, 1.3862944], [0.0012856, 1.0584812]]
GRAD_BTV = [
    [[0.079910964, 0.130076215, 0.11670097, -0.32668817], [0.0, 0.0, 0.0, 0.0]],
    [[-0.0034952727, 0.0013616754, 1.2364714e-07, 0.002132759], [0.41997427, -0.41997439, 0.41997427, -0.41997439]],
]


def test_each_token_has_the_entropy_and_the_gradient_it_has_in_verl() -> None:
    logits_BTV = LOGITS_BTV.clone().requires_grad_()
    entropy_BT = token_entropy(logits_BTV)
    torch.testing.assert_close(entropy_BT, torch.tensor(ENTROPY_BT), atol=1e-6, rtol=1e-5)
    (entropy_BT * torch.tensor([[1.0, 2], [3, 4]])).sum().backward()
    torch.testing.assert_close(logits_BTV.grad, torch.tensor(GRAD_BTV), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("shape", [(1, CHUNK_TOKENS * 2 + 3), (3, CHUNK_TOKENS), (CHUNK_TOKENS + 1, 2), (2, 0), (5,)])
def test_chunks_make_no_difference(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    whole_BTV = torch.randn(*shape[:-1], shape[-1] + 1, 5, generator=generator, dtype=torch.float64)
    plain_BTV, chunked_BTV = whole_BTV.clone().requires_grad_(), whole_BTV.clone().requires_grad_()
    weights_BT = torch.randn(*shape, generator=generator, dtype=torch.float64)

    expected_BT = torch.distributions.Categorical(logits=plain_BTV[..., :-1, :]).entropy() if shape[-1] else weights_BT
    entropy_BT = token_entropy(chunked_BTV[..., :-1, :])
    torch.testing.assert_close(entropy_BT, expected_BT)
    if shape[-1]:
        (expected_BT * weights_BT).sum().backward()
        (entropy_BT * weights_BT).sum().backward()
        torch.testing.assert_close(chunked_BTV.grad, plain_BTV.grad)


def test_large_logits_and_words_that_are_ruled_out_do_no_harm() -> None:
    logits_BTV = (torch.tensor([[[0.0, 0.0, float("-inf")]]]) + 1e4).requires_grad_()
    entropy_BT = token_entropy(logits_BTV)
    entropy_BT.sum().backward()
    assert entropy_BT.item() == pytest.approx(math.log(2), rel=1e-6)
    torch.testing.assert_close(logits_BTV.grad, torch.zeros(1, 1, 3))


def test_half_precision_logits_give_float32_entropy_and_a_gradient_of_their_own_kind() -> None:
    logits_BTV = LOGITS_BTV.bfloat16().requires_grad_()
    entropy_BT = token_entropy(logits_BTV)
    entropy_BT.sum().backward()
    torch.testing.assert_close(entropy_BT, torch.tensor(ENTROPY_BT), atol=1e-6, rtol=1e-5)
    assert logits_BTV.grad is not None
    assert logits_BTV.grad.dtype == torch.bfloat16


def test_a_token_that_is_left_out_has_no_gradient_even_if_its_logits_are_nan() -> None:
    logits_BTV = LOGITS_BTV.clone()
    logits_BTV[1] = float("nan")
    logits_BTV.requires_grad_()
    token_entropy(logits_BTV)[0].sum().backward()
    assert logits_BTV.grad is not None
    assert torch.equal(logits_BTV.grad[1], torch.zeros(2, 4))
    assert logits_BTV.grad[0, 0].abs().sum() > 0
