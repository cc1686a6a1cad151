"""`rewardflow agent` as far as it can be told without a cluster; tests/ray_cluster has the rest."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import rewardflow as rf
from rewardflow.cli.agent import lines_of
from rewardflow.cli.main import main
from rewardflow.reward.agent import RewardAgent
from rewardflow.shared_agent.host import Host


async def score_one(solution_str: str) -> float:
    return 1.0


def test_a_reward_that_cannot_travel_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agent", "start", "judge.py", "--set", "run=x"]) == 2
    assert "a shared agent takes no 'run'" in capsys.readouterr().err


def test_a_variable_that_is_not_set_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agent", "start", str(tmp_path / "judge.py"), "--env", "NO_SUCH_VARIABLE"]) == 2
    assert "NO_SUCH_VARIABLE" in capsys.readouterr().err


@pytest.mark.parametrize("resource", ["gpu_box", "=1", "gpu_box=x", "gpu_box=0", "gpu_box=-1", "gpu_box=nan", "a=inf"])
def test_a_resource_that_no_node_can_have_is_refused(resource: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agent", "start", "judge:score", "--resource", resource]) == 2
    told = capsys.readouterr().err
    assert told == f"rewardflow: --resource takes NAME=X with a number above 0, got {resource!r}\n"


def test_an_empty_reward_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "judge.yaml").write_text("")
    assert main(["agent", "start", str(tmp_path / "judge.yaml")]) == 2
    assert f"{tmp_path / 'judge.yaml'}: a reward file must be a mapping, got None" in capsys.readouterr().err


def test_status_shows_runs_and_clients_and_no_control_characters() -> None:
    async def status() -> str:
        async with RewardAgent(score_one, serves_runs=True) as agent:
            host = Host(agent, incarnation="1")
            host.hello("0123456789", "job \x1b[31m", 2.0)
            ticket = agent.open_forwarding_ticket(host, run="job \x1b[31m", share=2.0)
            agent.submit(rf.Rollout(group_id="q", response="x"), ticket=ticket)
            return "\n".join(lines_of(host.statistics(), "judge"))

    told = asyncio.run(status())
    assert "clients: 1" in told
    assert "share 2" in told
    assert "\x1b" not in told
