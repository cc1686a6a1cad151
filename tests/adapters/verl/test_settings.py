"""The section `rewardflow` of a verl configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rewardflow.adapters.verl.settings import SANDBOX_RULES, VERL_RULES, settings_of
from rewardflow.errors import InvalidInput


def config(section: dict[str, Any] | None = None, **users: Any) -> dict[str, Any]:
    """As much of a verl configuration as is read."""
    trainer = {"project_name": "p", "experiment_name": "e", "default_local_dir": "checkpoints/p/e"}
    return {
        "rewardflow": section,
        "actor_rollout_ref": {"rollout": {"n": 4}},
        "reward": {"custom_reward_function": users},
        "trainer": trainer,
    }


def test_without_a_section_there_are_defaults_and_verls_own_rules() -> None:
    settings = settings_of(config())
    assert (settings.stream, settings.max_staleness, settings.reward) == ("mini_batch", 0, VERL_RULES)
    assert settings.run == "p/e"


def test_the_users_file_is_the_reward() -> None:
    settings = settings_of(config(None, path="/r/judge.py", name="Judge", reward_kwargs={"model": "m"}))
    assert settings.reward == "/r/judge.py:Judge"
    assert settings.reward_kwargs == {"model": "m"}


def test_two_rewards_are_refused() -> None:
    with pytest.raises(InvalidInput, match="a run has one reward"):
        settings_of(config({"reward": "judge.yaml"}, path="/r/judge.py", name="Judge"))


def test_settings_of_the_agent_have_the_agents_names_and_rules() -> None:
    assert settings_of(config({"max_concurrency": 8, "rpm": 60})).agent_options["rpm"] == 60
    with pytest.raises(InvalidInput, match="max_concurrency must be"):
        settings_of(config({"max_concurrency": 0}))
    with pytest.raises(InvalidInput, match="did you mean 'max_concurrency'"):
        settings_of(config({"max_concurency": 8}))


def test_the_run_has_its_directory_beside_its_checkpoints_and_the_journal_in_it() -> None:
    settings = settings_of(config())
    assert settings.run_dir == str(Path("checkpoints/p/e/rewardflow").absolute())
    assert settings.agent_options["journal"] == f"{settings.run_dir}/journal.db"


def test_a_run_can_do_without_a_directory() -> None:
    settings = settings_of(config({"run_dir": None}))
    assert settings.run_dir is None
    assert "journal" not in settings.agent_options
    nowhere = config()
    nowhere["trainer"]["default_local_dir"] = None  # a folder named None would be no place for it
    assert settings_of(nowhere).run_dir is None


@pytest.mark.parametrize(
    "section",
    [
        {"stream": "micro_batch"},
        {"max_staleness": -1},
        {"max_staleness": True},
        {"min_group": 0},
        {"behaviour_weight_cap": 0},
        {"order": "random"},
        {"allow_untested_verl": "yes"},
        {"overlong": 8192},
    ],
)
def test_what_breaks_a_rule_is_refused_by_name(section: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=f"rewardflow.{next(iter(section))} must be"):
        settings_of(config(section))


@pytest.mark.parametrize(
    ("path", "reward"),
    [
        ("pkg://my.rewards", "my.rewards:judge"),
        ("pkg://my/rewards", "my.rewards:judge"),
        ("file:///home/me/rewards.py", "/home/me/rewards.py:judge"),
        ("rewards.py", "rewards.py:judge"),
    ],
)
def test_a_reward_is_found_where_verl_would_find_it(path: str, reward: str) -> None:
    made = config()
    made["reward"]["custom_reward_function"] = {"path": path, "name": "judge"}
    assert settings_of(made).reward == reward


def test_verls_rules_are_told_of_the_sandbox() -> None:
    made = config()
    made["reward"]["sandbox_fusion"] = {"url": "http://127.0.0.1:8080", "memory_limit_mb": 512, "max_concurrent": 4}
    settings = settings_of(made)
    assert settings.reward == SANDBOX_RULES
    url = "http://127.0.0.1:8080"
    assert settings.reward_kwargs == {"sandbox_fusion_url": url, "memory_limit_mb": 512, "max_concurrent": 4}
    made["reward"]["sandbox_fusion"] = {"url": url, "max_concurrent": None}
    assert settings_of(made).reward_kwargs == {"sandbox_fusion_url": url}


def test_a_reward_that_is_no_name_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"rewardflow\.reward must be the name of a file or of code, got \{"):
        settings_of(config({"reward": {"reward": "llm_judge"}}))


def test_a_section_that_is_no_section_is_refused() -> None:
    with pytest.raises(InvalidInput, match="must be settings with names, got 1"):
        settings_of(config() | {"rewardflow": 1})


def test_a_group_of_one_rollout_needs_one_verdict() -> None:
    lone = config()
    lone["actor_rollout_ref"]["rollout"]["n"] = 1
    assert settings_of(lone).min_group == 1
    assert settings_of(config()).min_group == 2


def test_more_verdicts_than_rollouts_are_refused_before_anything_starts() -> None:
    with pytest.raises(InvalidInput, match=r"min_group must be at most actor_rollout_ref\.rollout\.n, got 5 and 4"):
        settings_of(config({"min_group": 5}))


def test_the_penalty_for_overlong_responses_counts_tokens() -> None:
    rule = settings_of(config({"overlong": {"limit": 10, "buffer": 4, "penalty": 2.0}})).overlong
    assert rule is not None
    assert (rule.limit, rule.buffer, rule.penalty, rule.unit) == (10, 4, 2.0, "tokens")
    with pytest.raises(InvalidInput, match="must have limit and buffer"):
        settings_of(config({"overlong": {"limit": 10}}))
    with pytest.raises(InvalidInput, match="buffer must lie in"):
        settings_of(config({"overlong": {"limit": 10, "buffer": 11}}))
