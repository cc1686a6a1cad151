"""The rows of `rewardflow bench judging`, each with its bar.

Always true: a row that needs a server is measured only if the caller names one.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from rewardflow.bench.benchmark_row import BenchmarkRow
from rewardflow.bench.judging.dear_calls import train
from rewardflow.bench.judging.prompt_reuse import measure
from rewardflow.bench.judging.simulated_audits import STEPS, is_false_alarm, steps_to_alarm

NUM_SEEDS = 10
NUM_HONEST_RUNS = 1000
NUM_HACKED_RUNS = 200


def run_judging_benchmarks(
    *, quick: bool = False, judge_url: str | None = None, judge_model: str = "smollm2"
) -> Iterator[BenchmarkRow]:
    """Measures one part after the other. `judge_url` is an OpenAI-style server that reports cached tokens."""
    if judge_url is not None:
        yield from _reuse_rows(judge_url, judge_model)
    yield from _escalation_rows(2 if quick else NUM_SEEDS)
    yield from _audit_rows(100 if quick else NUM_HONEST_RUNS, 20 if quick else NUM_HACKED_RUNS)


def _reuse_rows(url: str, model: str) -> Iterator[BenchmarkRow]:
    ours, other = measure(url, model)
    yield BenchmarkRow(
        name="prompt tokens computed for a group of eight",
        value=ours.computed_tokens,
        unit="tokens",
        yardstick=other.computed_tokens,
        yardstick_name="with the answer first",
        bar="<= 0.45",
        bar_on="ratio",
    )


def _escalation_rows(num_seeds: int) -> Iterator[BenchmarkRow]:
    by_arm = {arm: [train(arm, seed) for seed in range(num_seeds)] for arm in ("cheap", "dear", "escalation")}
    gaps = [
        dear.final_reward - ours.final_reward for dear, ours in zip(by_arm["dear"], by_arm["escalation"], strict=True)
    ]
    yield BenchmarkRow(
        name=f"final reward from the cheap judge alone, mean of {num_seeds} seeds",
        value=statistics.fmean(one.final_reward for one in by_arm["cheap"]),
        unit="",
        yardstick=statistics.fmean(one.final_reward for one in by_arm["dear"]),
        yardstick_name="from the dear judge alone",
    )
    yield BenchmarkRow(
        name="calls of the dear judge in an escalation",
        value=sum(one.dear_calls for one in by_arm["escalation"]),
        unit="calls",
        yardstick=sum(one.dear_calls for one in by_arm["dear"]),
        yardstick_name="asked about all",
        bar="<= 0.3",
        bar_on="ratio",
    )
    yield BenchmarkRow(
        name=f"final reward lost by the escalation, worst of {num_seeds} seeds",
        value=max(gaps),
        unit="",
        bar="<= 0.01",
    )


def _audit_rows(num_honest: int, num_hacked: int) -> Iterator[BenchmarkRow]:
    yield BenchmarkRow(
        name=f"false alarms of an audit in {num_honest:,} honest runs of {STEPS} steps",
        value=sum(is_false_alarm(seed) for seed in range(num_honest)) / num_honest,
        unit="",
        bar="<= 0.02",
    )
    waits = [steps_to_alarm(seed) for seed in range(num_hacked)]
    heard = [wait for wait in waits if wait is not None]
    yield BenchmarkRow(
        name=f"hacked runs of {num_hacked} in which the audit speaks",
        value=len(heard) / num_hacked,
        unit="",
        bar=">= 1",
    )
    yield BenchmarkRow(
        name="steps from the beginning of the hack to the alarm, the latest",
        value=max(heard, default=STEPS),
        unit="steps",
        yardstick=statistics.median(heard) if heard else None,
        yardstick_name="in the median",
        bar="<= 35",
    )
