"""The actor that keeps the board of groups, on a Ray cluster of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray_here import one_node

from rewardflow.adapters.verl.accounting.board_actor import BoardActor
from rewardflow.adapters.verl.accounting.group_board import GroupBoard
from rewardflow.adapters.verl.accounting.group_report import GroupReport
from rewardflow.errors import AgentHalted, FlowError


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with one_node(num_cpus=2):
        yield


@pytest.fixture
def worker() -> Any:
    """Any actor with a question that it does not answer."""
    return ray.remote(GroupBoard).options(num_cpus=0).remote()


def test_a_question_is_answered_while_the_workers_live(worker: Any) -> None:
    board = BoardActor()
    board.depend_on([worker.wait_for_change.remote(0)])
    board.ask("judged", GroupReport(uid="a", step=1, size=2, verdicts=()))
    assert [report.uid for report in board.ask("wait_until_judged", ["a"], 1)] == ["a"]


def test_waiting_for_the_groups_of_a_worker_that_is_gone_ends(worker: Any) -> None:
    board = BoardActor()
    board.depend_on([worker.wait_for_change.remote(0)])
    ray.kill(worker)
    with pytest.raises(FlowError, match="a worker that generates is gone"):
        board.ask("wait_until_generated", ["a"])


def test_an_agent_that_gave_up_is_the_runs_own_error() -> None:
    board = BoardActor()
    board.ask("halt", "ServiceOutage: down")
    with pytest.raises(AgentHalted, match=r"^the reward agent gave up: ServiceOutage: down$"):
        board.ask("wait_until_judged", ["a"], 1)
