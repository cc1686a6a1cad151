"""What a shared agent may be made of, and how two descriptions of it are told apart."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path

import pytest

import rewardflow as rf
from rewardflow.errors import InvalidInput
from rewardflow.shared_agent.spec import AgentSpec


async def score_one(solution_str: str) -> float:
    return 1.0


def judge_in(folder: Path, text: str = "def compute_score(solution_str, factor=1.0): return factor\n") -> Path:
    path = folder / "judge.py"
    path.write_text(text, "utf-8")
    return path


def value_of(spec: AgentSpec) -> float | None:
    async def main() -> float | None:
        async with pickle.loads(pickle.dumps(spec)).build() as agent:
            (group,) = await agent.submit(rf.Rollout(group_id="q", response="x")).all()
            return group.rewards[0].value

    return asyncio.run(main())


def test_a_named_reward_is_built_where_the_spec_arrives(tmp_path: Path) -> None:
    judge = judge_in(tmp_path)
    assert value_of(AgentSpec.of(f"{judge}:compute_score", reward_kwargs={"factor": 3.0})) == 3.0
    assert value_of(AgentSpec.of([rf.Weighted(str(judge), weight=0.5, name="half")])) == 0.5


def test_a_yaml_file_travels_by_its_contents(tmp_path: Path) -> None:
    judge_in(tmp_path)
    (tmp_path / "reward.yaml").write_text("reward: judge.py:compute_score\nfactor: 2.0\nlimits: {rpm: 600}\n", "utf-8")
    spec = AgentSpec.of(tmp_path / "reward.yaml")
    (tmp_path / "reward.yaml").unlink()
    assert value_of(spec) == 2.0


@pytest.mark.parametrize(
    ("text", "problem"),
    [(None, "the file must exist"), ("a: [", "must be valid YAML"), ("[1]", "a reward file must be a mapping")],
)
def test_a_yaml_file_that_cannot_be_read_is_named(tmp_path: Path, text: str | None, problem: str) -> None:
    path = tmp_path / "judge.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidInput, match=rf"judge\.yaml: .*{problem}"):
        AgentSpec.of(path)


def test_what_cannot_travel_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"got the object .*score_one"):
        AgentSpec.of(score_one)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"reward_kwargs\['client'\] of judge.py"):
        AgentSpec.of(str(judge_in(tmp_path)), reward_kwargs={"client": object()})


@pytest.mark.parametrize("name", ["run", "run_dir"])
def test_settings_that_belong_to_one_run_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match=f"takes no '{name}'"):
        AgentSpec.of(str(judge_in(tmp_path)), **{name: "x"})
    with pytest.raises(InvalidInput, match=f"takes no '{name}'"):
        AgentSpec.of({"reward": "judge.py", "limits": {name: "x"}}, folder=tmp_path)


def test_a_difference_names_settings_with_their_values_and_a_rewards_own_without(tmp_path: Path) -> None:
    judge = str(judge_in(tmp_path))
    one = AgentSpec.of(judge, rpm=600, reward_kwargs={"factor": 1.0, "api_key": "sk-one"})
    other = AgentSpec.of(judge, max_attempts=5, reward_kwargs={"factor": 1.0, "api_key": "sk-other"})
    difference = one.difference(other)
    assert difference is not None
    assert "rpm (600 and the default)" in difference
    assert "max_attempts (the default and 5)" in difference
    assert "reward_kwargs.api_key" in difference
    assert "factor" not in difference
    assert "sk-" not in difference


def test_a_difference_shows_no_password_of_an_endpoint(tmp_path: Path) -> None:
    judge = str(judge_in(tmp_path))
    one = AgentSpec.of(judge, endpoints=("https://me:hunter22@one.example",))
    difference = one.difference(AgentSpec.of(judge, endpoints=("https://me:hunter22@other.example",)))
    assert difference is not None
    assert "other.example" in difference
    assert "hunter22" not in difference


def test_a_default_that_is_written_out_is_no_difference_and_an_edited_file_is_one(tmp_path: Path) -> None:
    judge = judge_in(tmp_path)
    one = AgentSpec.of(str(judge), max_attempts=3)
    assert one.difference(AgentSpec.of(str(judge))) is None
    judge_in(tmp_path, "def compute_score(solution_str): return 0.0\n")
    assert f"the text of {judge}" in (one.difference(AgentSpec.of(str(judge))) or "")
