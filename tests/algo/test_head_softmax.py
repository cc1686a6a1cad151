"""Log-probs and entropies from hidden states: what all logits at once give, in value and gradient, in any blocks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from rewardflow.algo.head_softmax import KEPT_LOGITS, head_softmax
from rewardflow.algo.token_softmax import token_softmax


def head(num_tokens: int, num_words: int, seed: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Hidden states, weights and bias, which all have gradients."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((num_tokens, 3), (num_words, 3), (num_words,))
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


@given(
    num_tokens=st.integers(1, 9),
    num_words=st.integers(1, 9),
    kept_logits=st.integers(1, 90),
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
    trains_entropy=st.booleans(),
    has_bias=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_blocks_of_words_give_what_all_logits_give(
    num_tokens: int,
    num_words: int,
    kept_logits: int,
    temperature: float,
    trains_entropy: bool,
    has_bias: bool,
    seed: int,
) -> None:
    entropy = "trained" if trains_entropy else "measured"
    inputs = head(num_tokens, num_words, seed)[: 3 if has_bias else 2]
    generator = torch.Generator().manual_seed(seed)
    tokens_N = torch.randint(num_words, (num_tokens,), generator=generator)
    weights_N, entropy_weights_N = torch.randn(2, num_tokens, generator=generator, dtype=torch.float64)
    results = []
    for of in ("all logits", "blocks"):
        hidden, weight, *bias = inputs
        if of == "blocks":
            log_probs_N, entropy_N = head_softmax(
                hidden,
                weight,
                bias[0] if bias else None,
                tokens_N,
                temperature=temperature,
                entropy=entropy,  # type: ignore[arg-type]
                kept_logits=kept_logits,
            )
        else:
            logits_NV = F.linear(hidden, weight, bias[0] if bias else None)
            log_probs_N, entropy_N = token_softmax(logits_NV, tokens_N, temperature=temperature, entropy="trained")
        assert entropy_N is not None
        total = (log_probs_N * weights_N).sum()
        if trains_entropy:
            total = total + (entropy_N * entropy_weights_N).sum()
        results.append((log_probs_N, entropy_N, *torch.autograd.grad(total, inputs)))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


def test_words_without_a_chance_and_large_logits_lose_no_digits() -> None:
    hidden, weight, bias = head(4, 6, seed=1, dtype=torch.float32)
    far = torch.tensor([0.0, 5e4, -torch.inf, 0.0, 5e4, 5e4 - 1])
    tokens_N = torch.tensor([1, 4, 5, 1])
    blocks = head_softmax(hidden, weight, bias + far, tokens_N, entropy="measured", kept_logits=8)
    exact = token_softmax(
        F.linear(hidden.double(), weight.double(), (bias + far).double()), tokens_N, entropy="measured"
    )
    for found, expected in zip(blocks, exact, strict=True):
        assert found is not None
        assert expected is not None
        torch.testing.assert_close(found.double(), expected, rtol=1e-2, atol=1e-2)  # float32 at 5e4
        assert torch.isfinite(found).all()


def test_a_token_without_a_gradient_adds_nothing_to_the_weights() -> None:
    hidden, weight, _ = head(5, 7, seed=2)
    tokens_N = torch.tensor([0, 1, 2, 3, 4])
    grads = []
    for chosen in (slice(0, 5), slice(0, 3)):
        log_probs_N, _ = head_softmax(hidden[chosen], weight, None, tokens_N[chosen], kept_logits=4)
        grads.append(torch.autograd.grad(log_probs_N[:3].sum(), weight)[0])
    torch.testing.assert_close(grads[0], grads[1])


def test_frozen_weights_get_no_gradient_and_hidden_states_do() -> None:
    hidden, weight, bias = head(5, 7, seed=3)
    log_probs_N, _ = head_softmax(hidden, weight.detach(), bias.detach(), torch.arange(5), kept_logits=4)
    log_probs_N.sum().backward()  # type: ignore[no-untyped-call]
    assert hidden.grad is not None
    assert weight.grad is None
    assert bias.grad is None


def test_bfloat16_products_are_as_close_in_blocks_as_at_once() -> None:
    hidden, weight, _ = head(64, 50, seed=4, dtype=torch.float32)
    tokens_N = torch.arange(64) % 50
    exact, _ = head_softmax(hidden, weight, None, tokens_N)
    expected = torch.autograd.grad(exact.sum(), [hidden, weight])
    errors = []
    for kept_logits in (KEPT_LOGITS, 64 * 7):
        found, _ = head_softmax(hidden, weight, None, tokens_N, compute=torch.bfloat16, kept_logits=kept_logits)
        grads = torch.autograd.grad(found.sum(), [hidden, weight])
        assert found.dtype == torch.float32
        errors.append([float((one - other).norm() / other.norm()) for one, other in zip(grads, expected, strict=True)])
    assert errors[1] == pytest.approx(errors[0], rel=0.5)
    assert max(errors[1]) < 0.02


class Largest(TorchDispatchMode):
    """Watches the number of entries of every tensor that is made."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        made = func(*args, **(kwargs or {}))
        self.most = max([self.most, *(one.numel() for one in tree_iter(made) if isinstance(one, Tensor))])
        return made


@pytest.mark.parametrize("entropy", ["measured", "trained"])
def test_no_tensor_has_an_entry_for_every_token_and_word(entropy: str) -> None:
    hidden, weight, _ = head(200, 300, seed=5, dtype=torch.float32)
    with Largest() as watch:
        log_probs_N, entropy_N = head_softmax(
            hidden,
            weight,
            None,
            torch.arange(200),
            entropy=entropy,
            kept_logits=2000,  # type: ignore[arg-type]
        )
        assert entropy_N is not None
        (log_probs_N + entropy_N).sum().backward()  # type: ignore[no-untyped-call]
    assert 0 < watch.most <= 2000
