"""Which versions are validated, with which requests, and how urgent their calls are."""

from __future__ import annotations

import pytest

from rewardflow.flow.records import Prompt, Sampling
from rewardflow.flow.validation.validation_plan import Occasions, ValidationPlan

PROMPTS = tuple(Prompt(uid=str(i), text=str(i)) for i in range(2))


@pytest.mark.parametrize(
    ("occasions", "versions"),
    [
        (Occasions(), [7]),
        (Occasions(every=3), [3, 6, 7]),
        (Occasions(every=3, at_start=True, at_end=False), [0, 3, 6]),
        (Occasions(at_end=False), []),
    ],
)
def test_versions_are_those_of_the_interval_and_both_ends(occasions: Occasions, versions: list[int]) -> None:
    assert occasions.versions(num_steps=7) == versions


def test_calls_are_due_with_the_next_validation_or_the_end_of_the_run() -> None:
    every = ValidationPlan(prompts=PROMPTS, occasions=Occasions(every=3))
    assert every.due_step(6, num_steps=100) == 9
    assert ValidationPlan(prompts=PROMPTS).due_step(0, num_steps=100) == 100


def test_requests_differ_from_those_of_training_and_between_versions_only_by_the_step() -> None:
    sampling = Sampling(seed=8, top_k=1)
    plan = ValidationPlan(prompts=PROMPTS, group_size=4, sampling=sampling)
    first, second = plan.requests(3), plan.requests(5)
    assert [request.group_id for request in first] == ["validation-0", "validation-1"]
    assert [request.step for request in (*first, *second)] == [3, 3, 5, 5]
    assert [request.number for request in first] == [request.number for request in second]
    assert {(request.group_size, request.sampling) for request in first} == {(4, sampling)}
