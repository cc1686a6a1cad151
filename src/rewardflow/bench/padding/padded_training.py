"""`rewardflow bench padding`: trains on rows of mixed lengths, padded and without padding.

Always true: both train the same model on the same rows with the same budget of tokens a pass, in turns, and the median
counts; tokens are those of the rows, so padding makes no row faster.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rewardflow.bench.benchmark_row import BenchmarkRow
from rewardflow.flow.device_thread import DeviceThread

if TYPE_CHECKING:
    from rewardflow.flow.records import Sample
    from rewardflow.train.fsdp2.trainer import TorchTrainer


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedRows:
    """Rows of which most are short and some are long, as responses are."""

    num_rows: int = 64
    shortest: int = 24
    longest: int = 512
    budget: int = 2048  # tokens of a pass
    hidden: int = 256
    num_layers: int = 4
    seed: int = 0

    def lengths(self) -> list[int]:
        dice = random.Random(self.seed)
        drawn = (int(dice.lognormvariate(4.6, 0.8)) for _ in range(self.num_rows))
        return [min(self.longest, max(self.shortest, one)) for one in drawn]


def run_padding_benchmarks(*, quick: bool = False, rows: MixedRows | None = None) -> Iterator[BenchmarkRow]:
    rows = rows or MixedRows()
    lengths = rows.lengths()
    samples = _samples(lengths, rows.seed)
    padded, joined = _seconds(rows, samples, num_times=2 if quick else 7)
    yield BenchmarkRow(
        name=f"a step on {len(lengths)} rows of {min(lengths)} to {max(lengths)} tokens, without padding",
        value=sum(lengths) / joined,
        unit="tokens/s",
        yardstick=sum(lengths) / padded,
        yardstick_name="with padding",
    )
    yield BenchmarkRow(
        name="tokens that go through the model, without padding",
        value=_computed(rows, lengths, padding_free=True),
        unit="tokens",
        yardstick=_computed(rows, lengths, padding_free=False),
        yardstick_name="with padding",
    )


def _computed(rows: MixedRows, lengths: Sequence[int], *, padding_free: bool) -> int:
    from rewardflow.train.packing import split_passes

    passes = split_passes(lengths, rows.budget, padding_free=padding_free)
    if padding_free:
        return sum(lengths)
    return sum(len(indices) * max(lengths[index] for index in indices) for indices in passes)


def _samples(lengths: Sequence[int], seed: int) -> list[Sample]:
    from rewardflow.flow.records import Precomputed, Sample
    from rewardflow.types import Reward, Rollout

    dice = random.Random(seed)
    found = []
    for index, length in enumerate(lengths):
        num_prompt = min(16, length // 2)
        rollout = Rollout(
            group_id=str(index),
            response="",
            token_ids=[dice.randrange(10) for _ in range(length)],
            response_mask=[0] * num_prompt + [1] * (length - num_prompt),
        )
        reward = Reward(value=1.0)
        found.append(Sample(rollout=rollout, reward=reward, advantage=dice.gauss(0, 1), precomputed=Precomputed()))
    return found


def _seconds(rows: MixedRows, samples: Sequence[Sample], *, num_times: int) -> tuple[float, float]:
    """Returns the median seconds of a step, padded and without padding; the first of each does not count."""
    with DeviceThread("padded") as first, DeviceThread("joined") as second:
        trainers = [_trainer(rows, thread, padding_free=thread is second) for thread in (first, second)]
        times: list[list[float]] = [[], []]
        for number in range(1 + num_times):
            for trainer, own in zip(trainers, times, strict=True):
                started_s = time.perf_counter()
                asyncio.run(_step(trainer, samples, number))
                own.append(time.perf_counter() - started_s)
    padded_s, joined_s = (statistics.median(own[1:]) for own in times)
    return padded_s, joined_s


async def _step(trainer: TorchTrainer, samples: Sequence[Sample], number: int) -> None:
    from rewardflow.flow.records import MicroBatch

    async with trainer.step(number):
        await trainer.forward_backward(MicroBatch(step=number, mini_batch=0, samples=tuple(samples), is_last=True))
        await trainer.optim_step()


def _trainer(rows: MixedRows, thread: DeviceThread, *, padding_free: bool) -> TorchTrainer:
    from rewardflow.policy.load_policy import load_policy
    from rewardflow.settings.run_settings import AlgorithmSettings, PolicySettings, TrainerSettings
    from rewardflow.train.fsdp2.trainer import TorchTrainer

    policy = load_policy(PolicySettings(tiny_hidden=rows.hidden, tiny_layers=rows.num_layers), seed=rows.seed)
    return TorchTrainer(
        policy.model,
        trainer=TrainerSettings(micro_batch_tokens=rows.budget, padding_free=padding_free),
        algorithm=AlgorithmSettings(),
        uses_old=False,
        temperature=1.0,
        max_response_tokens=rows.longest,
        total_steps=100,
        thread=thread,
    )
