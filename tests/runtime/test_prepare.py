"""What a run starts from is checked and found once, and nothing is written for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_run import settings_in

from rewardflow.errors import InvalidInput
from rewardflow.observe.run_directory import JOURNAL_FILE
from rewardflow.reward.agent import RewardAgent
from rewardflow.runtime.prepare import check_start, prepare, prepare_evaluation
from rewardflow.settings.run_settings import DataSettings, ValidationSettings


def test_a_new_run_starts_at_the_beginning_and_nothing_is_written(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, run_dir=tmp_path / "run")
    prepared = prepare(check_start(settings))
    assert (prepared.start.resumes, prepared.start.checkpoint) == (False, None)
    assert prepared.settings is settings
    assert prepared.validation_set is None
    assert not prepared.is_agent_shared
    assert not (tmp_path / "run").exists()


def test_an_agent_that_is_given_replaces_that_of_the_settings(tmp_path: Path) -> None:
    agent = RewardAgent(lambda solution_str: 1.0)
    assert prepare(check_start(settings_in(tmp_path)), agent=agent).agent is agent


def test_a_check_has_an_agent_that_keeps_nothing(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, run_dir=tmp_path / "run")
    kept = [prepare(check_start(settings), writes=writes).agent.settings.journal for writes in (True, False)]
    assert kept == [tmp_path / "run" / JOURNAL_FILE, None]


def test_a_run_without_a_directory_cannot_resume(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="run_dir must be given, got null"):
        check_start(settings_in(tmp_path), resume=True)


def test_a_run_that_resumes_before_its_first_checkpoint_starts_at_the_beginning(tmp_path: Path) -> None:
    start = check_start(settings_in(tmp_path, run_dir=tmp_path / "run"), resume=True)
    assert (start.resumes, start.checkpoint) == (True, None)


def test_an_evaluation_needs_no_prompts_of_training(tmp_path: Path) -> None:
    settings = settings_in(
        tmp_path,
        data=DataSettings(path=str(tmp_path / "gone.jsonl")),
        validation=ValidationSettings(data=DataSettings(task="copy_digits", limit=2)),
    )
    prepared = prepare_evaluation(settings)
    assert prepared.prompt_set is prepared.validation_set
    assert prepared.prompt_set.size == 2
    with pytest.raises(InvalidInput, match="gone"):
        prepare(check_start(settings))
