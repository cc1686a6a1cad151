"""Settings are valid or refused, with the rule and the value."""

from __future__ import annotations

from typing import Any

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.mock_judge.settings import FAULTS, MockJudgeSettings, parse_faults


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("faults", {"500": 0.6, "502": 0.6}, r"must add up to at most 1, got \{'500': 0.6, '502': 0.6\}, that is 1.2"),
        ("faults", {"500": -0.1}, r"must lie in \[0, 1\], got 500=-0.1"),
        ("faults", {"500": float("nan")}, r"must lie in \[0, 1\], got 500=nan"),
        ("faults", {"418": 0.1}, r"a fault must be one of 429, .*huge_body, got '418'"),
        ("latency", "weibull:1,2", r"latency must be constant:S, .* got 'weibull:1,2'"),
        ("scale", 0, "scale must be a positive number, got 0"),
        ("scale", float("inf"), "scale must be a positive number, got inf"),
        ("rpm", 0, "rpm must be a positive number, got 0"),
        ("tpm", -5, "tpm must be a positive number, got -5"),
        ("max_concurrency", 0, "max_concurrency must be a whole number of at least 1, got 0"),
        ("max_concurrency", 1.5, "max_concurrency must be a whole number of at least 1, got 1.5"),
        ("port", 70_000, "port must be a whole number of at least 0 and at most 65535, got 70000"),
        ("seed", "x", "seed must be a whole number, got 'x'"),
        ("hang_s", True, "hang_s must be a positive number, got True"),
        ("model", "", "model must be a name"),
        ("model", ",5=b", "model must begin with a name, got ',5=b'"),
        ("model", "a,b", "model must be a name, or NAME,N=NAME,... with growing numbers of answers, got 'b' in 'a,b'"),
        ("model", "a,5=", "got '5=' in 'a,5='"),
        ("model", "a,5=b,5=c", "got '5=c' in 'a,5=b,5=c'"),
    ],
)
def test_a_bad_setting_is_refused_with_rule_and_value(setting: str, value: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        MockJudgeSettings(**{setting: value})


def test_shares_may_add_up_to_exactly_one() -> None:
    assert sum(MockJudgeSettings(faults=dict.fromkeys(FAULTS[:10], 0.1)).faults.values()) == pytest.approx(1.0)


def test_faults_are_written_as_names_and_shares() -> None:
    assert parse_faults("429=0.05, hang=0.01,") == {"429": 0.05, "hang": 0.01}
    assert parse_faults("") == {}


@pytest.mark.parametrize("text", ["hang", "hang=", "hang=often", "hang=0.1,hang=0.2"])
def test_faults_written_otherwise_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="hang"):
        parse_faults(text)


def test_scores_must_be_of_a_kind_that_there_is() -> None:
    with pytest.raises(InvalidInput, match="scores must be one of made_up, exact, graded, length, word, got 'right'"):
        MockJudgeSettings(scores="right")  # type: ignore[arg-type]


def test_a_model_may_be_renamed_after_some_answers() -> None:
    settings = MockJudgeSettings(model="org/m-1, 2=org/m-2,5 = m-3")
    names = [settings.model_after(num_answers) for num_answers in range(7)]
    assert names == ["org/m-1"] * 2 + ["org/m-2"] * 3 + ["m-3"] * 2
    assert MockJudgeSettings().model_after(10**9) == "mock-judge"
