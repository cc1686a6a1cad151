"""The call before a run: what is down is told at once, what is slow is not waited for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tiny_run import settings_in

from rewardflow import clock
from rewardflow.errors import RewardLoadError
from rewardflow.flow.records import Prompt
from rewardflow.runtime.reward_probe import PATIENCE_S, SampleVerdict, ask_about_sample, probe

PROMPT = Prompt(uid="0", text="407=", ground_truth="407", data_source="digits")


def ask(folder: Path, reward: str, prompt: Prompt = PROMPT, **fields: Any) -> SampleVerdict:
    settings = settings_in(folder, reward, **fields)
    return clock.run(ask_about_sample(settings, prompt, folder=folder, patience_s=PATIENCE_S))


def probe_in(folder: Path, reward: str, **fields: Any) -> None:
    clock.run(probe(settings_in(folder, reward, **fields), PROMPT, folder=folder))


def test_a_reward_is_asked_once_about_the_right_answer(tmp_path: Path) -> None:
    sample = ask(tmp_path, "judge")
    assert [rollout.response for rollout in sample.rollouts] == ["407"]
    assert sample.failure is None
    assert (sample.num_calls, sample.cost_usd, sample.tokens, sample.units) == (1, 0.01, 7, ("rollout",))


@pytest.mark.parametrize(
    ("truth", "response"), [(42, "42"), (["a", "b"], "a"), (None, "?"), ({"id": 1}, "?"), ([], "?"), (True, "?")]
)
def test_what_is_no_plain_answer_becomes_a_question_mark(tmp_path: Path, truth: Any, response: str) -> None:
    sample = ask(tmp_path, "judge", Prompt(uid="0", ground_truth=truth))
    assert sample.rollouts[0].response == response


def test_a_reward_that_judges_groups_gets_two_different_answers(tmp_path: Path) -> None:
    sample = ask(tmp_path, "Ranking")
    assert [rollout.response for rollout in sample.rollouts] == ["407", "?"]
    assert [reward.value for reward in sample.rewards] == [0.0, 1.0]
    assert (sample.num_calls, sample.units) == (1, ("group",))


def test_where_the_right_answer_needs_no_call_another_one_is_asked_about(tmp_path: Path) -> None:
    with pytest.raises(RewardLoadError, match="nobody at home"):
        probe_in(tmp_path, "Cascade")


@pytest.mark.parametrize(
    ("reward", "told"), [("refusing", "answered 401"), ("broken", "user_error"), ("Hanging", "127.0.0.1:9")]
)
def test_a_reward_that_cannot_work_ends_the_start_with_its_reason(tmp_path: Path, reward: str, told: str) -> None:
    with pytest.raises(RewardLoadError, match=told):
        probe_in(tmp_path, reward)


def test_a_slow_judge_is_not_waited_for_and_does_not_end_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def timed() -> float:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await probe(settings_in(tmp_path, "slow"), PROMPT, folder=tmp_path)
        return loop.time() - began_s

    assert clock.run(timed()) < 10
    assert "has not answered a sample within 4 s" in caplog.text


def test_an_unclear_answer_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    probe_in(tmp_path, "unclear")
    assert "unparsable" in caplog.text


def test_patience_of_the_run_itself_does_not_hold_up_the_start(tmp_path: Path) -> None:
    with pytest.raises(RewardLoadError, match="nobody at home"):
        probe_in(tmp_path, "Cascade", limits={"max_attempts": 100, "backoff_s": 60.0, "outage_window": 1})


def test_nothing_is_written(tmp_path: Path) -> None:
    ask(tmp_path, "judge", run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
