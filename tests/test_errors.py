"""All errors are in one tree, and those that reward code raises can be sent between processes."""

from __future__ import annotations

import inspect
import pickle

import pytest

import rewardflow as rf
from rewardflow import errors


@pytest.mark.parametrize(
    "error",
    [
        rf.RateLimited("slow down", retry_after_s=7, headers={"retry-after": "7"}),
        rf.ServiceError("down", status=503, retryable=False, retry_after_s=2.0),
        rf.Unparsable("no score", retryable=False),
    ],
)
def test_what_reward_code_raises_can_be_pickled_with_all_it_says(error: rf.CallError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_everything_raised_on_purpose_is_in_the_tree_and_drawn_in_the_docstring() -> None:
    classes = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if cls.__module__ == errors.__name__]
    assert all(issubclass(cls, rf.RewardflowError) for cls in classes)
    assert all(cls.__name__ in str(errors.__doc__) for cls in classes)


def test_a_callers_mistake_is_also_a_value_error() -> None:
    assert issubclass(rf.InvalidInput, ValueError)
