"""Rewards that are not there are found before anything starts, and without running the user's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from rewardflow.adapters.verl.launch.reward_check import check_reward
from rewardflow.adapters.verl.settings import VerlSettings
from rewardflow.errors import InvalidInput

FILE = """
raise RuntimeError("only the cluster can run this")
from elsewhere import borrowed as lent
try:
    import fast as judge_module
except ImportError:
    alias: object = None
def judge(): inner = 1
class Judge:
    def compute_score(self): ...
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "judge.py").write_text(FILE)
    return tmp_path / "judge.py"


@pytest.mark.parametrize("name", ["judge", "Judge", "lent", "judge_module", "alias"])
def test_a_reward_that_its_file_defines_is_found(file: Path, name: str) -> None:
    check_reward(VerlSettings(reward=f"{file}:{name}"))


@pytest.mark.parametrize("name", ["inner", "compute_score", "borrowed"])
def test_a_name_that_the_file_does_not_have_is_refused(file: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match=f"must be defined in its file, got .*judge.py, which has no '{name}'"):
        check_reward(VerlSettings(reward=f"{file}:{name}"))


def test_the_nearest_name_is_told(file: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no 'Juge'; did you mean 'Judge'\?"):
        check_reward(VerlSettings(reward=f"{file}:Juge"))


def test_a_file_without_a_name_means_its_compute_score(file: Path) -> None:
    with pytest.raises(InvalidInput, match="which has no 'compute_score'"):
        check_reward(VerlSettings(reward=str(file)))
    file.write_text("def compute_score(): ...")
    check_reward(VerlSettings(reward=str(file)))


def test_a_file_that_takes_all_from_another_may_have_any_name(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text("from elsewhere import *\n")
    check_reward(VerlSettings(reward=f"{tmp_path / 'judge.py'}:anything"))


@pytest.mark.parametrize("ending", ["py:judge", "yaml"])
def test_a_file_that_is_not_there_is_refused(tmp_path: Path, ending: str) -> None:
    with pytest.raises(InvalidInput, match=r"the reward's file must exist, got .*none"):
        check_reward(VerlSettings(reward=f"{tmp_path}/none.{ending}"))


def test_a_file_that_is_no_python_is_refused(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text("def judge(:\n")
    with pytest.raises(InvalidInput, match=r"must be Python, got .*judge\.py: invalid syntax"):
        check_reward(VerlSettings(reward=f"{tmp_path / 'judge.py'}:judge"))


def test_a_service_with_a_wrong_setting_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "judge.yaml"
    file.write_text("reward: llm_judge\nmodell: x\n")
    with pytest.raises(InvalidInput, match="did you mean 'model'"):
        check_reward(VerlSettings(reward=str(file)))
    file.write_text("reward: llm_judge\nmodel: x\nbase_urls: ['http://127.0.0.1:1']\n")
    check_reward(VerlSettings(reward=str(file)))


def test_a_kind_of_service_alone_is_no_reward() -> None:
    with pytest.raises(InvalidInput, match=r"must be a reward file ending in \.yaml, .* got 'llm_judge'"):
        check_reward(VerlSettings(reward="llm_judge"))
