"""Flat names for programs that draw curves."""

from rewardflow.runtime.records.flat_metrics import scalars


def test_nested_numbers_get_a_path_and_what_is_no_number_is_left_out() -> None:
    line = {
        "v": 1,
        "step": 3,
        "source": "train",
        "score_mean": None,
        "cost_usd": 2,
        "busy_s": {"update": 1.5},
        "warnings": ["a text"],
        "by_staleness": {"1": {"entropy": 0.5}},
        "mini_batches": [
            {"mini_batch": 0, "epoch": 0, "entropy": 0.4, "by_staleness": {"1": {"entropy": 0.5}}},
            {"mini_batch": 1, "epoch": 2, "entropy": 0.6, "by_staleness": {}},
        ],
    }
    assert scalars(line) == {
        "cost_usd": 2.0,
        "busy_s/update": 1.5,
        "by_staleness/1/entropy": 0.5,
        "mini_batch/0/entropy": 0.4,
        "epoch/2/mini_batch/1/entropy": 0.6,
    }
