"""What is counted between updates, and how an update is told."""

import logging
from typing import get_args

import pytest
import torch
from tiny_training import batch, random_samples

from rewardflow.settings.run_settings import Aggregation
from rewardflow.train.fsdp2.sharding import Ranks
from rewardflow.train.update_tally import UpdateTally

ALONE = Ranks(torch.device("cpu"))


def test_samples_that_are_scored_count_in_the_denominator_whether_or_not_they_are_trained() -> None:
    tally = UpdateTally("seq_mean_token_sum", 9)
    samples = random_samples(6)
    scored = tally.take(batch(samples))
    assert len(scored) == sum(sample.is_scored for sample in samples) < len(samples)
    tally.count_rows(scored, scored[:1])
    assert tally.close(ALONE).denominator == len(scored)
    assert tally.close(ALONE).denominator == 0
    assert (tally.statistics().num_rows, tally.statistics().num_rows_without_gradient) == (1, len(scored) - 1)


def test_what_was_not_stepped_on_is_forgotten() -> None:
    tally = UpdateTally("token_mean", 9)
    tally.take(batch(random_samples(6)))
    tally.forget()
    assert tally.close(ALONE).num_sequences == 0


@pytest.mark.parametrize(
    ("grad_norm", "counts", "told"),
    [(1.5, (1, 0), 1.5), (None, (0, 0), 0.0), (float("inf"), (0, 1), float("inf"))],
)
def test_an_update_is_told_with_what_became_of_it(
    grad_norm: float | None, counts: tuple[int, int], told: float, caplog: pytest.LogCaptureFixture
) -> None:
    tally = UpdateTally("token_mean", 9)
    tally.take(batch(random_samples(6)))
    with caplog.at_level(logging.WARNING):
        report = tally.told(tally.close(ALONE), grad_norm=grad_norm, lr=0.1, step=3)
    statistics = tally.statistics()
    assert (statistics.num_updates, statistics.num_nonfinite_updates) == counts
    assert (report.grad_norm, report.metrics["skipped_nonfinite"]) == (told, float(counts[1]))
    assert bool(caplog.records) == bool(counts[1])


def test_an_update_without_a_scored_sample_is_told_as_empty() -> None:
    tally = UpdateTally("token_mean", 9)
    report = tally.told(tally.close(ALONE), grad_norm=None, lr=0.1, step=0)
    assert report.metrics["skipped_empty"] == 1.0
    assert tally.statistics().num_empty_updates == 1


def test_the_share_of_tokens_divides_a_mean_over_tokens_and_no_mean_over_rollouts() -> None:
    samples = random_samples(6)
    found = {}
    for rule in get_args(Aggregation):
        denominators = []
        for share in (1.0, 0.5):
            tally = UpdateTally(rule, 9)
            tally.take(batch(samples))
            denominators.append(tally.close(ALONE, share).denominator)
        found[rule] = denominators[1] / denominators[0]
    assert found == {"token_mean": 2.0, "seq_mean_token_sum": 1.0, "seq_mean_token_mean": 1.0, "fixed_length": 1.0}
