"""What rewards, groups and agents look like at a prompt and in a notebook."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import rewardflow as rf
from rewardflow.notebook_table import html_table

EVIL = "<script>alert(1)</script>"


def test_reprs_are_short() -> None:
    assert repr(rf.Reward(value=0.75, cost_usd=0.0004)) == "Reward(0.75, cost $0.0004)"
    assert repr(rf.Reward(value=1.0, cached=True, imputed=True)) == "Reward(1, imputed, cached)"
    assert repr(rf.Reward(kind="timeout", error="no answer")) == "Reward(failed: timeout, 'no answer')"
    rollout = rf.Rollout(group_id="q1", response="x" * 500, token_ids=range(500))
    assert repr(rollout) == f"Rollout('q1', 0 of 1, '{'x' * 59}…')"
    group = rf.ScoredGroup(group_id="q1", step=3, group_size=1, rollouts=(rollout,), rewards=(rf.Reward(value=0.5),))
    assert repr(group) == "ScoredGroup('q1', step 3, 1 reward, mean 0.5)"


def test_an_agent_says_what_it_is_doing() -> None:
    async def use() -> list[str]:
        agent = rf.RewardAgent(rf.Weighted(lambda response: 1.0, name="judge"))
        said = [repr(agent)]
        async with agent:
            await agent.submit(rf.Rollout(group_id="q", response="r")).all()
            said.append(repr(agent))
        return [*said, repr(agent)]

    assert asyncio.run(use()) == [
        "RewardAgent(judge, not opened yet)",
        "RewardAgent(judge, open: 1 of 1 judged, 0 in flight, 0 waiting)",
        "RewardAgent(judge, closed)",
    ]


def test_rewards_and_groups_are_tables_in_which_no_text_is_markup() -> None:
    rollout = rf.Rollout(group_id=EVIL, response=EVIL)
    failed = rf.Reward(kind="user_error", error=EVIL)
    group = rf.ScoredGroup(group_id=EVIL, step=0, group_size=1, rollouts=(rollout,), rewards=(failed,))
    for shown in (group._repr_html_(), failed._repr_html_(), rf.RewardList([failed])._repr_html_()):
        assert "<script>" not in shown
        assert "&lt;script&gt;" in shown
        assert "failed: user_error" in shown


def test_a_long_table_is_cut_and_says_so() -> None:
    shown = html_table("many", ("n",), [(i,) for i in range(60)])
    assert "(the first 50 of 60)" in shown
    assert shown.count("<tr>") == 51


def test_score_takes_one_rollout_and_a_reward_file(tmp_path: Path) -> None:
    (tmp_path / "rule.yaml").write_text("reward: gsm8k\nlimits: {max_concurrency: 3}\n", "utf-8")
    rollout = rf.Rollout(group_id="q", response="#### 42", ground_truth="42")
    rewards = rf.score(rollout, str(tmp_path / "rule.yaml"))
    assert [reward.value for reward in rewards] == [1.0]
    assert isinstance(rewards, list)
    assert rf.RewardAgent(str(tmp_path / "rule.yaml")).shown_settings()["max_concurrency"] == 3
    agent = rf.RewardAgent(str(tmp_path / "rule.yaml"), max_concurrency=5)
    assert agent.shown_settings()["max_concurrency"] == 5
    with pytest.raises(rf.InvalidInput, match="stand in the file"):
        rf.score(rollout, str(tmp_path / "rule.yaml"), reward_kwargs={"a": 1})
