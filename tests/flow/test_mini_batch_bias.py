"""A step reports whether its mini-batches are alike, and a token weighs the same in each of them."""

from __future__ import annotations

import asyncio
import random
from array import array
from typing import Any

import pytest
from flow.fake_run import SCHEDULES, FakeRun, judge_of
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardflow.flow.fakes import FakeGenerator, FakeTrainer
from rewardflow.flow.mini_batch_bias import MiniBatchFigures
from rewardflow.flow.records import Precomputed, Sample, UpdateReport, num_sampled_tokens
from rewardflow.flow.schedule import Schedule
from rewardflow.types import Reward, Rollout

FOUR = Schedule(groups_per_step=32, mini_batches=4, stream="mini_batch")


def sample(length: int, score: float | None, latency_s: float = 1.0) -> Sample:
    rollout = Rollout(group_id="0", response="", response_mask=array("b", [1] * length))
    reward = Reward(value=score, kind=None if score is not None else "timeout", attempts=1, latency_s=latency_s)
    return Sample(rollout=rollout, reward=reward, advantage=0.0, precomputed=Precomputed())


class LongRanging(FakeGenerator):
    """Makes answers of very different lengths."""

    def __init__(self) -> None:
        super().__init__(
            num_tokens=lambda request, index: 1 + random.Random(request.number * 97 + index).randrange(200)
        )


async def slow_on_long_answers(rollout: Rollout) -> float:
    await asyncio.sleep(num_sampled_tokens(rollout))
    return random.Random(rollout.response).random()


class ShareNotingTrainer(FakeTrainer):
    """Notes the token share of every update, and the tokens that were generated for it."""

    def __init__(self) -> None:
        super().__init__()
        self.shares: list[float] = []
        self.tokens: list[int] = []

    async def forward_backward(self, batch: Any) -> None:
        await super().forward_backward(batch)
        if len(self.tokens) == len(self.shares):
            self.tokens.append(0)
        self.tokens[-1] += sum(num_sampled_tokens(one.rollout) for one in batch.samples)

    async def optim_step(self, token_share: float = 1.0) -> UpdateReport:
        self.shares.append(token_share)
        return await super().optim_step(token_share)


def test_a_figure_that_grows_from_mini_batch_to_mini_batch_correlates_with_its_index() -> None:
    figures = MiniBatchFigures()
    for index in range(4):
        figures.add([sample(10 * index + i, score=-float(index), latency_s=5.0) for i in range(4)], index)
    bias = figures.bias()
    assert bias.length == pytest.approx(1.0, abs=0.02)
    assert bias.score == -1.0
    assert bias.latency is None  # it does not vary


def test_one_mini_batch_has_no_bias_and_a_failed_verdict_has_no_score() -> None:
    figures = MiniBatchFigures()
    figures.add([sample(3, None), sample(4, 1.0), sample(5, 0.0)], 0)
    assert figures.bias().length is None
    assert figures.bias().score is None


def test_where_latency_grows_with_length_the_order_of_verdicts_biases_mini_batches_that_of_prompts_does_not() -> None:
    def mean_bias(order: Any) -> float:
        run = FakeRun(FOUR.changed(order=order), slow_on_long_answers, generator=LongRanging(), group_size=2)
        found = [report.mini_batch_bias.length or 0.0 for report in run.run(steps=8).reports]
        return sum(found) / len(found)

    assert mean_bias("completion") > 0.5
    assert abs(mean_bias("fixed")) < 0.15


@pytest.mark.parametrize("stream", ["batch", "mini_batch", "micro_batch"])
def test_a_token_weighs_the_same_in_every_mini_batch_by_default(stream: Any) -> None:
    trainer = ShareNotingTrainer()
    run = FakeRun(FOUR.changed(stream=stream), slow_on_long_answers, generator=LongRanging(), trainer=trainer)
    run.run(steps=3)
    for step in range(3):
        # A token's weight is one divided by its mini-batch's denominator: its tokens, divided by its share.
        tokens, shares = trainer.tokens[4 * step : 4 * step + 4], trainer.shares[4 * step : 4 * step + 4]
        weights = [share / count for share, count in zip(shares, tokens, strict=True)]
        assert max(weights) / min(weights) == pytest.approx(1.0)
        assert max(tokens) / min(tokens) > 1.05  # which would be the ratio of the weights without the shares


@settings(max_examples=40)
@given(SCHEDULES, st.integers(0, 99), st.floats(0, 0.7))
def test_the_shares_of_a_step_have_a_mean_of_one_whatever_fails_and_drops_out(
    schedule: Schedule, seed: int, failing: float
) -> None:
    trainer = ShareNotingTrainer()
    FakeRun(schedule, judge_of(seed, failing=failing), generator=LongRanging(), trainer=trainer).run(steps=2)
    for step in range(2):
        shares = trainer.shares[schedule.mini_batches * step : schedule.mini_batches * (step + 1)]
        assert sum(shares) / len(shares) == pytest.approx(1.0)
    if schedule.mini_batches == 1:
        assert set(trainer.shares) == {1.0}  # exactly: the update of one mini-batch is that of the whole batch


def test_scarce_slots_judge_groups_in_the_order_of_their_prompts_however_their_rollouts_end() -> None:
    begun: list[int] = []

    class Reversed(FakeGenerator):
        async def generate(self, requests: Any) -> Any:
            async for rollout in super().generate(list(reversed(requests))):
                yield rollout
            await asyncio.sleep(5)

    async def judge(rollout: Rollout) -> float:
        begun.append(int(rollout.group_id))
        await asyncio.sleep(100)
        return 1.0

    FakeRun(Schedule(groups_per_step=8), judge, generator=Reversed(), slots=4, group_size=4).run(steps=1)
    assert begun[4:] == sorted(begun[4:])  # the first four took the free slots as they were generated
