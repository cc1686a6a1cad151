"""Sums of an update do not depend on how it was cut, and are divided once."""

import pytest
import torch
from tiny_training import MAX_RESPONSE_TOKENS, rollout

from rewardflow.settings.run_settings import Aggregation
from rewardflow.train.accumulated import Accumulated
from rewardflow.train.fsdp2.sharding import Ranks
from rewardflow.train.loss_terms import PassSums
from rewardflow.train.packing import TokenRow

ALONE = Ranks(torch.device("cpu"))
ROWS = [TokenRow.of(rollout([1], [2] * count)) for count in (1, 4, 3)]


def pass_sums(loss: float, tokens: int, clipped: int) -> PassSums:
    def number(value: float) -> torch.Tensor:
        return torch.tensor(value, dtype=torch.float64)

    return PassSums(
        weighted={"policy_loss": number(loss)}, counted={"tokens": number(tokens), "clipped_low": number(clipped)}
    )


@pytest.mark.parametrize(
    ("aggregation", "denominator"),
    [("token_mean", 8), ("seq_mean_token_sum", 3), ("seq_mean_token_mean", 3), ("fixed_length", 27)],
)
def test_the_denominator_adds_up_over_micro_batches(aggregation: Aggregation, denominator: float) -> None:
    accumulated = Accumulated()
    for rows in (ROWS[:1], [], ROWS[1:]):
        accumulated.count(rows, aggregation, MAX_RESPONSE_TOKENS)
    sums = accumulated.summed(ALONE)
    assert (sums.denominator, sums.num_sequences, sums.num_tokens, sums.num_passes) == (denominator, 3, 8, 0)


def test_terms_of_the_loss_are_divided_as_it_is_and_counts_by_the_tokens_that_were_trained() -> None:
    accumulated = Accumulated()
    accumulated.count(ROWS, "seq_mean_token_sum", MAX_RESPONSE_TOKENS)
    accumulated.add(pass_sums(loss=2.0, tokens=1, clipped=1))
    accumulated.add(pass_sums(loss=-0.5, tokens=3, clipped=0))
    assert accumulated.summed(ALONE).metrics == {"trained_tokens": 4, "policy_loss": 0.5, "clipped_low": 0.25}


def test_nothing_at_all_divides_by_nothing() -> None:
    sums = Accumulated().summed(ALONE)
    assert (sums.denominator, sums.metrics) == (0.0, {"trained_tokens": 0.0})


def test_token_counts_beyond_what_float32_can_count_stay_exact() -> None:
    accumulated = Accumulated()
    accumulated.denominator += 2**24
    accumulated.count(ROWS[:1], "token_mean", MAX_RESPONSE_TOKENS)
    assert accumulated.summed(ALONE).denominator == 2**24 + 1
