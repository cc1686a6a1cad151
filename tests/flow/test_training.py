"""Mini-batches, epochs and advantages of a step, and what became of each rollout."""

import asyncio
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from flow.fake_run import SCHEDULES, FakeRun, judge_of
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardflow.errors import InvalidInput
from rewardflow.flow.fakes import CentredScores, FakeGenerator
from rewardflow.flow.records import TRUNCATED, GroupRequest
from rewardflow.flow.schedule import Schedule
from rewardflow.types import Rollout


def test_several_epochs_train_every_group_as_often() -> None:
    run = FakeRun(Schedule(groups_per_step=4, mini_batches=2, epochs=3), judge_of(0)).run(steps=2)
    assert len(run.reports[0].updates) == 6
    assert set(Counter(run.trained()).values()) == {3}
    assert run.reports[0].num_groups == 4


def test_an_update_says_which_mini_batch_of_which_epoch_it_was() -> None:
    schedule = Schedule(groups_per_step=4, mini_batches=2, epochs=2, stream="batch")
    (report,) = FakeRun(schedule, judge_of(0)).run(steps=1).reports
    assert [(update.epoch, update.mini_batch) for update in report.updates] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_advantages_that_need_the_batch_see_all_of_it_and_are_refused_where_they_cannot() -> None:
    seen = []

    class Whitened(CentredScores):
        def __call__(self, groups: Any, precomputed_of: Any = None) -> Any:
            seen.append(len(groups))
            return super().__call__(groups)

    FakeRun(Schedule(groups_per_step=6, mini_batches=3), judge_of(0), advantages=Whitened(needs="batch")).run(steps=2)
    assert [count for count in seen if count] == [6, 6]
    with pytest.raises(InvalidInput, match="need a whole batch before the first one, which stream=mini_batch"):
        FakeRun(
            Schedule(groups_per_step=6, stream="mini_batch"), judge_of(0), advantages=CentredScores(needs="batch")
        ).run(steps=1)


def test_advantages_of_a_mini_batch_see_the_same_groups_for_every_stream() -> None:
    def sizes(stream: Any) -> list[int]:
        seen = []

        class Noted(CentredScores):
            def __call__(self, groups: Any, precomputed_of: Any = None) -> Any:
                seen.append(len(groups))
                return super().__call__(groups, precomputed_of)

        schedule = Schedule(groups_per_step=6, mini_batches=3, stream=stream, order="fixed")
        FakeRun(schedule, judge_of(0), advantages=Noted(needs="mini_batch")).run(steps=1)
        return [size for size in seen if size]

    assert sizes("batch") == sizes("mini_batch") == [2, 2, 2]


def test_rewards_stay_with_their_own_rollouts_in_whatever_order_groups_finish() -> None:
    async def compute_score(data_source: str, solution_str: str, ground_truth: str) -> float:
        await asyncio.sleep(random.Random(solution_str).uniform(0, 50))
        return float(solution_str)

    schedule = Schedule(groups_per_step=6, mini_batches=2, stream="micro_batch", max_staleness=2)
    generator = FakeGenerator(num_tokens=lambda request, index: 1 + (request.number * 7 + index) % 13)
    run = FakeRun(schedule, compute_score, generator=generator).run(steps=5)
    for batch in run.trainer.batches:
        for sample in batch.samples:
            assert sample.reward.value == float(sample.rollout.response)


@settings(max_examples=40)
@given(SCHEDULES, st.integers(0, 99), st.sampled_from([0.0, 0.3, 0.7]), st.booleans())
def test_every_judged_rollout_is_told_once_with_what_became_of_it(
    schedule: Schedule, seed: int, failing: float, drops_equal: bool
) -> None:
    schedule = schedule.changed(drop_equal_scores=drops_equal)
    run = FakeRun(schedule, judge_of(seed, failing=failing)).run(steps=3)
    for report in run.reports:
        told = run.judged[report.step]
        places = [(one.rollout.group_id, one.rollout.index) for one in told]
        assert len(set(places)) == len(places) == report.num_scored + sum(report.failed.values())
        trained = [one for one in told if one.why_not is None]
        in_part = [one for one in told if one.why_not in (None, "failed")]
        samples = [s for batch in run.trainer.batches if batch.step == report.step for s in batch.samples]
        assert {one.rollout.response for one in in_part} == {sample.rollout.response for sample in samples}
        advantages = {s.rollout.response: s.advantage for s in samples if s.is_scored}
        assert {one.rollout.response: one.advantage for one in trained} == advantages
        assert all(one.reward.value is None for one in told if one.why_not == "failed")
        dropped = Counter({reason: 4 * count for reason, count in report.dropped.items()})
        assert Counter(one.why_not for one in told if one.why_not in ("too_few_verdicts", "equal_scores")) == dropped


class CuttingGenerator(FakeGenerator):
    """Cuts off the first response of each group."""

    def _rollout(self, request: GroupRequest, index: int, version: int) -> Rollout:
        rollout = super()._rollout(request, index, version)
        return replace(rollout, extra_info={TRUNCATED: True}) if index == 0 else rollout


@pytest.mark.parametrize("mask_truncated", [False, True])
def test_truncated_responses_are_compared_with_and_trained_on_only_without_the_mask(mask_truncated: bool) -> None:
    schedule = Schedule(groups_per_step=4, mini_batches=2)
    run = FakeRun(schedule, judge_of(0), generator=CuttingGenerator(), mask_truncated=mask_truncated).run(steps=1)
    samples = [sample for batch in run.trainer.batches for sample in batch.samples]
    assert {sample.rollout.index: sample.why_not for sample in samples if sample.why_not} == (
        {0: "truncated"} if mask_truncated else {}
    )
    for first in range(0, 16, 4):  # the baseline of a group is the mean of all four scores
        assert sum(sample.advantage for sample in samples[first : first + 4]) == pytest.approx(0.0)
    assert Counter(one.why_not for one in run.judged[0])["truncated"] == (4 if mask_truncated else 0)
