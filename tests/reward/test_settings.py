"""A settings record that exists is valid; a mistake names the rule, the value and the nearest name."""

from __future__ import annotations

import typing

import pytest

import rewardflow as rf
from rewardflow.reward.settings import AGENT_NAMES, LIMIT_NAMES, AgentOptions, LimitOptions, split_options


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_concurrency": 0}, "max_concurrency must be a whole number of at least 1, got 0"),
        ({"max_concurrency": -5}, "got -5"),
        ({"max_concurrency": 2.5}, "got 2.5"),
        ({"max_concurrency": True}, "got True"),
        ({"rpm": -60}, "rpm must be a positive number or None, got -60"),
        ({"timeout_s": 0}, "timeout_s must be a positive number or None, got 0"),
        ({"timeout_s": float("nan")}, "got nan"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"hedge_quantile": 95}, r"hedge_quantile must lie in \(0, 1\], got 95"),
        ({"workers": "fibre"}, "workers must be one of thread, process, got 'fibre'"),
        ({"endpoints": "http://a"}, "endpoints must be a sequence of names"),
        ({"endpoints": ["a", "a"]}, "endpoints must differ"),
        ({"reuse": "always"}, "reuse must be one of sample, content, off, got 'always'"),
        ({"max_cost_usd": -1}, "max_cost_usd"),
        ({"run": ""}, "run must be a name"),
        ({"max_concurency": 8}, "there is no setting 'max_concurency'; did you mean 'max_concurrency'"),
    ],
)
def test_a_broken_rule_is_named_with_its_value(options: dict[str, object], says: str) -> None:
    with pytest.raises(rf.InvalidInput, match=says):
        split_options(options)


def test_an_agent_refuses_bad_settings_before_it_is_opened() -> None:
    with pytest.raises(rf.InvalidInput, match="max_concurrency"):
        rf.RewardAgent(lambda solution_str: 1.0, max_concurrency=-1)


def test_the_typed_keywords_are_the_settings() -> None:
    assert set(typing.get_type_hints(LimitOptions)) == set(LIMIT_NAMES)
    assert set(typing.get_type_hints(AgentOptions)) == set(LIMIT_NAMES) | set(AGENT_NAMES)
