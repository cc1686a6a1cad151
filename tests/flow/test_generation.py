"""Steps and reserves are generated when they are needed, and prompts are used once."""

from collections import Counter

import pytest
from flow.fake_run import FakeRun, judge_of

from rewardflow.errors import FlowError
from rewardflow.flow.schedule import Schedule


def test_the_last_step_is_the_last_thing_that_is_generated() -> None:
    run = FakeRun(Schedule(groups_per_step=4, max_staleness=3), judge_of(0)).run(steps=2)
    assert [step for step, _ in run.generator.generated] == [0, 1]
    assert run.prompts.num_made == 8


def test_prompts_of_reserves_that_were_never_judged_come_again() -> None:
    schedule = Schedule(groups_per_step=4, refill=2)
    run = FakeRun(schedule, judge_of(0)).run(steps=3)
    assert run.trained_prompts() == Counter({str(number): 1 for number in range(12)})
    judged = {response for _, response in run.trained()}
    assert len(judged) == 3 * 4 * 4


def test_more_rounds_of_reserves_are_generated_before_the_first_update_only() -> None:
    async def compute_score(data_source: str, solution_str: str, ground_truth: str) -> float:
        prompt, index = map(int, solution_str.split("."))
        return 1.0 if prompt < 6 else float(index)

    schedule = Schedule(groups_per_step=2, refill=1, refill_rounds=5, drop_equal_scores=True, mini_batches=2)
    run = FakeRun(schedule, compute_score).run(steps=1)
    assert set(run.trained_prompts()) == {"6", "7"}
    assert run.trainer.num_log_probs == 8 * 4
    few = FakeRun(schedule.changed(refill_rounds=2), compute_score).run(steps=1)
    assert few.reports[0].num_groups == 0


def test_a_prompt_source_that_runs_dry_is_told() -> None:
    run = FakeRun(Schedule(groups_per_step=2), judge_of(0))
    run.prompts.take = lambda count: []  # type: ignore[method-assign]
    with pytest.raises(FlowError, match="got 0 for 2"):
        run.run(steps=1)
