"""The sampler: its random numbers, its distribution, what top-k and top-p leave, and its log-probs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import TopKLogitsWarper, TopPLogitsWarper

from rewardflow.flow.records import Sampling
from rewardflow.generate.hf.sampling import draw, random_streams, restrict, uniforms

WORD = 2**64


def random_logits(num_rows: int, width: int, *, scale: float = 3.0, seed: int = 0) -> Tensor:
    return torch.randn(num_rows, width, generator=torch.Generator().manual_seed(seed)) * scale


def evenly_spread(count: int) -> Tensor:
    """Numbers of [0, 1) that a right inversion turns into the distribution, up to one part in `count`."""
    return (torch.arange(count, dtype=torch.float64) + 0.5) / count


def splitmix64(state: int) -> int:
    """The published function, in plain integers."""
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % WORD
    return state ^ (state >> 31)


# -- random numbers --


def test_a_stream_is_splitmix64_of_its_state() -> None:
    positions = torch.arange(5)
    for state in (0, 12345, -1):
        expected = [(splitmix64((state + (i + 1) * 0x9E3779B97F4A7C15) % WORD) >> 11) * 2.0**-53 for i in range(5)]
        assert uniforms(torch.tensor(state).expand(5), positions).tolist() == expected
    first_of_state_0 = 0xE220A8397B1DCDAF
    assert uniforms(torch.tensor([0]), torch.tensor([0])).item() == (first_of_state_0 >> 11) * 2.0**-53


def test_seed_group_and_index_each_make_another_stream() -> None:
    streams = {
        int(stream)
        for seed in range(-3, 5)
        for stream in random_streams(seed, [n for n in range(40) for _ in range(8)], list(range(8)) * 40)
    }
    assert len(streams) == 8 * 40 * 8


def test_a_stream_does_not_depend_on_the_others_it_is_asked_with() -> None:
    together = random_streams(7, [3, 4, 10**12], [0, 5, 2])
    alone = torch.cat([random_streams(7, [n], [i]) for n, i in ((3, 0), (4, 5), (10**12, 2))])
    assert torch.equal(together, alone)


def test_seeds_of_any_size_are_taken() -> None:
    seeds = (0, -1, 2**63, 2**64 + 1, -(2**70) + 3)
    assert len({int(random_streams(seed, [0], [0])) for seed in seeds}) == len(seeds)


@pytest.mark.parametrize("along", ["positions", "groups", "indices"])
def test_numbers_are_even_and_uncorrelated_along_every_counter(along: str) -> None:
    count = 65_536
    counter, zeros = list(range(count)), [0] * count
    if along == "positions":
        drawn = uniforms(random_streams(1, [0], [0]).expand(count), torch.arange(count))
    else:
        numbers, indices = (counter, zeros) if along == "groups" else (zeros, counter)
        drawn = uniforms(random_streams(1, numbers, indices), torch.zeros(count, dtype=torch.int64))
    bins = torch.histc(drawn, 64, 0.0, 1.0)
    chi_square = ((bins - count / 64) ** 2 / (count / 64)).sum()
    assert chi_square < 63 + 5 * (2 * 63) ** 0.5  # five standard deviations above what chance gives
    assert torch.corrcoef(torch.stack([drawn[:-1], drawn[1:]]))[0, 1].abs() < 5 / count**0.5


# -- the distribution --


@pytest.mark.parametrize("width", [7, 1024, 1025, 5000])  # from one sum to sums of blocks, the last of them not full
def test_what_is_drawn_follows_the_distribution(width: int) -> None:
    count = 4096
    logits = random_logits(1, width)
    drawn = draw(logits.expand(count, -1), evenly_spread(count), Sampling())
    shares = torch.bincount(drawn.tokens, minlength=width) / count
    # Even numbers leave each token within one number of its share, where independent ones would scatter by hundreds.
    assert (shares - logits.softmax(-1)[0]).abs().max() < 1.01 / count
    assert (drawn.tokens.diff() >= 0).all()


def test_a_rollouts_own_numbers_give_the_distribution_too() -> None:
    count, logits = 20_000, random_logits(1, 20, scale=1.0)
    streams = random_streams(3, list(range(count)), [0] * count)
    drawn = draw(logits.expand(count, -1), uniforms(streams, torch.full((count,), 9)), Sampling())
    expected = logits.softmax(-1)[0] * count
    chi_square = ((torch.bincount(drawn.tokens, minlength=20) - expected) ** 2 / expected).sum()
    assert chi_square < 19 + 5 * (2 * 19) ** 0.5


@pytest.mark.parametrize("width", [100, 151_936])
def test_the_ends_of_the_unit_interval_draw_a_token_that_has_a_weight(width: int) -> None:
    logits = torch.full((2, width), -torch.inf)
    logits[:, [3, width // 2]] = random_logits(2, 2)
    drawn = draw(logits, torch.tensor([0.0, 1.0 - 2.0**-53], dtype=torch.float64), Sampling())
    assert drawn.tokens.tolist() == [3, width // 2]


def test_a_large_vocabulary_of_rare_tokens_is_drawn_as_exactly_as_float64_can() -> None:
    width, share = 151_936, evenly_spread(20)
    logits = torch.full((1, width), -0.1)
    logits[0, 0] = 0.0  # so that the other weights are no round numbers, whose sums would be exact in any precision
    drawn = draw(logits.expand(20, -1), share, Sampling())
    sums = logits.exp().double().cumsum(-1)[0]
    assert drawn.tokens.tolist() == torch.searchsorted(sums, share * sums[-1], right=True).tolist()


# -- top-k, top-p, temperature --


@pytest.mark.parametrize(("top_k", "top_p"), [(5, 1.0), (0, 0.6), (0, 0.05), (8, 0.7), (1000, 0.999)])
def test_top_k_and_top_p_leave_what_transformers_leaves(top_k: int, top_p: float) -> None:
    logits = random_logits(50, 200)
    warped = logits
    if top_k:
        warped = TopKLogitsWarper(top_k)(None, warped)
    warped = TopPLogitsWarper(top_p)(None, warped)
    weights = (logits - logits.amax(-1, keepdim=True)).exp()
    assert torch.equal(restrict(weights, Sampling(top_k=top_k, top_p=top_p)) > 0, warped.isfinite())


def test_an_excluded_token_is_never_drawn_and_the_rest_keep_their_proportions() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]]).expand(1000, -1)
    drawn = draw(logits, evenly_spread(1000), Sampling(top_k=2))
    shares = torch.bincount(drawn.tokens, minlength=4) / 1000
    assert shares[2:].tolist() == [0.0, 0.0]
    assert torch.allclose(shares[:2], torch.tensor([3.0, 2.0]).softmax(-1), atol=2e-3)


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=0.7), Sampling(temperature=2.0, top_k=3, top_p=0.9)]
)
def test_log_probs_are_of_the_whole_distribution_at_the_temperature(sampling: Sampling) -> None:
    logits = random_logits(64, 5000)
    drawn = draw(logits.bfloat16(), evenly_spread(64), sampling)
    whole = (logits.bfloat16().float() / sampling.temperature).log_softmax(-1)
    assert drawn.log_probs.dtype == torch.float32
    assert torch.allclose(drawn.log_probs, whole.gather(-1, drawn.tokens[:, None]).squeeze(-1), atol=1e-5, rtol=0)


def test_a_temperature_near_0_draws_the_best_token() -> None:
    logits = random_logits(64, 300)
    drawn = draw(logits, evenly_spread(64), Sampling(temperature=1e-6))
    assert torch.equal(drawn.tokens, logits.argmax(-1))


def test_greedy_rows_take_the_likeliest_token_and_the_others_draw_what_they_would_have() -> None:
    logits = random_logits(6, 50)
    uniform = evenly_spread(6)
    is_greedy = torch.tensor([True, False, True, False, False, True])
    sampling = Sampling(temperature=0.7, top_p=0.9)
    alone, mixed = draw(logits, uniform, sampling), draw(logits, uniform, sampling, is_greedy)
    assert torch.equal(mixed.tokens[~is_greedy], alone.tokens[~is_greedy])
    assert torch.equal(mixed.tokens[is_greedy], logits.argmax(-1)[is_greedy])
    expected = (logits / 0.7).log_softmax(-1).gather(-1, mixed.tokens[:, None]).squeeze(-1)
    torch.testing.assert_close(mixed.log_probs, expected, rtol=1e-4, atol=1e-4)


def test_logits_that_are_not_finite_give_a_log_prob_that_is_not_a_number() -> None:
    logits = random_logits(3, 50)
    logits[1, 7], logits[2, 7] = torch.nan, torch.inf
    assert draw(logits, evenly_spread(3), Sampling()).log_probs.isnan().tolist() == [False, True, True]
