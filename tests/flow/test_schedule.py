"""A schedule that exists can be run."""

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.flow.schedule import Schedule


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"groups_per_step": 10, "mini_batches": 3}, "divisible by mini_batches, got groups_per_step=10, mini_b"),
        ({"groups_per_step": 0}, "groups_per_step must be a whole number of at least 1, got groups_per_step=0"),
        ({"groups_per_step": 4, "max_staleness": -1}, "max_staleness must be a whole number of at least 0"),
        ({"groups_per_step": 4, "max_staleness": True}, "max_staleness must be a whole number"),
        ({"groups_per_step": 4, "stream": "minibatch"}, "stream must be one of batch, mini_batch, micro_batch"),
        ({"groups_per_step": 4, "epochs": 2, "stream": "mini_batch"}, "need stream=batch, got epochs=2"),
        ({"groups_per_step": 4, "refill_rounds": 1}, "refill must be at least 1, got refill=0"),
        (
            {"groups_per_step": 4, "refill": 1, "refill_rounds": 1, "order": "fixed", "stream": "micro_batch"},
            "need stream=batch or order=completion, got refill_rounds=1, stream=micro_batch, order=fixed",
        ),
        ({"groups_per_step": 4, "straggler_s": 0.0}, "straggler_s must be a positive number"),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_rule_and_the_values(settings: dict, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Schedule(**settings)
    assert message in str(refused.value)


def test_one_update_a_step_needs_no_old_log_probs() -> None:
    assert not Schedule(groups_per_step=8).has_several_updates
    assert Schedule(groups_per_step=8, mini_batches=2).has_several_updates
    assert Schedule(groups_per_step=8, epochs=2).has_several_updates


def test_a_step_may_be_generated_by_a_version_that_is_not_too_old() -> None:
    schedule = Schedule(groups_per_step=8, max_staleness=2)
    assert [schedule.may_generate(5, version) for version in range(6)] == [False, False, False, True, True, True]
