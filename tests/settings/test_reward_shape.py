"""What the setting `reward` may look like."""

from __future__ import annotations

from typing import Any

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.settings.reward_shape import check_reward, is_named


@pytest.mark.parametrize(
    "reward",
    [
        "judge.py:compute_score",
        "judge.py",
        "package.module:name",
        "judge.yaml",
        {"reward": "gsm8k"},
        {"reward": "judge.py:Judge", "temperature": 0, "limits": {"rpm": 5}},
        {"rewards": [{"reward": "gsm8k", "weight": 2}, {"reward": "length", "limit": 9}], "limits": {}},
    ],
)
def test_a_reward_may_be_named_or_described(reward: Any) -> None:
    check_reward(reward, {})


@pytest.mark.parametrize(
    ("reward", "problem"),
    [
        (3, "reward must be text or a mapping, got 3"),
        ("gsm8k", "got 'gsm8k'; the kind is written as a mapping, {reward: gsm8k}"),
        (":name", "'package.module:name', got ':name'; known kinds: llm_judge, "),
        ({}, "either `reward` or `rewards` inside, got {}"),
        ({"reward": "gsm8k", "rewards": []}, "either `reward` or `rewards` inside, got the keys reward, rewards"),
        ({"reward": 3}, "reward must be a mapping in which `reward` is text, got the keys reward"),
        ({"reward": "gsmk8"}, "reward.reward must be a known kind, 'file.py:name' or 'package.module:name', got 'gsmk8'"
                              "; did you mean 'gsm8k'?"),
        ({"reward": "judge.yaml"}, "reward.reward must be a known kind"),
        ({"rewards": []}, "reward.rewards must be a list of at least one mapping, got []"),
        ({"rewards": ["gsm8k"]}, "reward.rewards[0] must be a mapping in which `reward` is text, got 'gsm8k'"),
        ({"rewards": [{"reward": "gsm8k"}], "limit": {}}, "there is no setting 'limit'; did you mean 'limits'?"),
    ],
)  # fmt: skip
def test_what_can_be_no_reward_is_refused(reward: Any, problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_reward(reward, {})
    assert problem in str(caught.value)


def test_settings_of_a_reward_go_with_one_that_is_named() -> None:
    check_reward("judge.py:f", {"a": 1})
    for reward in ("judge.yaml", {"reward": "gsm8k"}):
        assert not is_named(reward)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match=r"reward_kwargs are for a reward named .* got the reward_kwargs a"):
            check_reward(reward, {"a": 1})
