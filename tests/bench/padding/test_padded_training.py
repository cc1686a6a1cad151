"""Training on rows of mixed lengths, with and without padding."""

from __future__ import annotations

from rewardflow.bench.padding.padded_training import MixedRows, run_padding_benchmarks


def test_both_ways_are_measured_and_only_one_computes_padding() -> None:
    rows = MixedRows(num_rows=8, longest=40, budget=80, hidden=32, num_layers=1)
    speed, tokens = run_padding_benchmarks(quick=True, rows=rows)
    assert speed.value > 0
    assert speed.ratio is not None
    assert tokens.value == sum(rows.lengths())
    assert tokens.yardstick is not None
    assert tokens.yardstick > tokens.value
