"""Groups with a greedy baseline: it is judged and compared with, and never trained on."""

import asyncio
import dataclasses
from collections import Counter
from typing import Any

from flow.fake_run import FakeRun, Judge, judge_of

from rewardflow.flow.fakes import FakePrompts
from rewardflow.flow.schedule import Schedule


class AgainstLast:
    """Score minus that of the group's last rollout."""

    needs = "group"

    def __call__(self, groups: Any, precomputed_of: Any = None) -> Any:
        return [[(reward.value or 0.0) - group.rewards[-1].value for reward in group.rewards] for group in groups]


def with_baseline(judge: Judge, **schedule: Any) -> FakeRun:
    run = FakeRun(
        Schedule(**{"groups_per_step": 4, **schedule}),
        judge,
        group_size=2,
        has_baseline=True,
        advantages=AgainstLast(),
        takes_reference=True,
    )
    return run.run(steps=1)


def test_a_baseline_is_judged_and_compared_with_and_neither_trained_nor_looked_at() -> None:
    async def compute_score(solution_str: str, extra_info: dict[str, Any]) -> float:
        assert extra_info["greedy"] is solution_str.endswith(".2")
        return float(solution_str.split(".")[1])

    run = with_baseline(compute_score)
    samples = [sample for batch in run.trainer.batches for sample in batch.samples]
    assert sorted(s.rollout.response for s in samples) == [f"{i}.{j}" for i in range(4) for j in range(2)]
    assert {sample.advantage for sample in samples} == {-2.0, -1.0}
    assert run.trainer.num_log_probs == 8
    report = run.reports[0]
    assert (report.num_scored, report.score_mean, report.baseline_score_mean) == (12, 0.5, 2.0)
    fates = Counter((one.rollout.index, one.why_not) for one in run.judged[0])
    assert fates == {(0, None): 4, (1, None): 4, (2, "baseline"): 4}


def test_a_group_whose_baseline_has_no_verdict_is_dropped_with_that_reason_and_refilled() -> None:
    async def compute_score(solution_str: str) -> float:
        prompt, index = map(int, solution_str.split("."))
        if (prompt, index) == (1, 2):
            raise ValueError("the judge does not know")
        await asyncio.sleep(1 + index)
        return float(index)

    run = with_baseline(compute_score, refill=1)
    report = run.reports[0]
    assert report.dropped == {"no_baseline": 1}
    assert report.failed == {"user_error": 1, "cancelled": 2}  # the other calls of the group no longer mattered
    assert (report.num_groups, report.num_reserves_used) == (4, 1)
    assert run.trained_prompts() == Counter(["0", "2", "3", "4"])


def test_verdicts_that_a_group_needs_are_counted_without_its_baseline() -> None:
    async def compute_score(solution_str: str) -> float:
        prompt, index = map(int, solution_str.split("."))
        if (prompt, index) == (1, 0):
            raise ValueError("the judge does not know")
        return 1.0

    assert with_baseline(compute_score).reports[0].dropped == {"too_few_verdicts": 1}
    assert with_baseline(compute_score, min_group=1).reports[0].dropped == {}


def test_scores_that_equal_the_baselines_teach_nothing_and_those_that_do_not_do() -> None:
    async def compute_score(solution_str: str) -> float:
        prompt, index = map(int, solution_str.split("."))
        return 1.0 if prompt == 0 or index < 2 else 0.0

    report = with_baseline(compute_score, drop_equal_scores=True).reports[0]
    assert report.dropped == {"equal_scores": 1}


def test_a_prompt_that_calls_itself_greedy_is_trained_like_any_other() -> None:
    class Greedy(FakePrompts):
        def take(self, count: int) -> Any:
            return [dataclasses.replace(prompt, extra_info={"greedy": True}) for prompt in super().take(count)]

    run = FakeRun(Schedule(groups_per_step=2), judge_of(3), group_size=2)
    run.prompts = Greedy()
    assert len(run.run(steps=1).trained()) == 4
