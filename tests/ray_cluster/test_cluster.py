"""Runs on real Ray: any number of ranks is one rank, nodes that go away, and errors that are told in few words."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from cluster_runs import checkpoint_of, losses, metrics_in, on_ray, settings_in, train, weights_of
from processes_here import descendants_of, wait_until_gone
from ray.cluster_utils import Cluster
from ray_here import LOOPBACK, STORE_BYTES

from rewardflow.errors import ClusterError, InvalidInput
from rewardflow.flow.reports import StepReport
from rewardflow.flow.schedule import Schedule
from rewardflow.runtime.on_ray.actor_group import ActorGroup
from rewardflow.runtime.on_ray.rank_actor import Rank
from rewardflow.settings.run_settings import (
    AlgorithmSettings,
    CheckpointSettings,
    RunSettings,
    RuntimeSettings,
    SharedAgentSettings,
    TrainerSettings,
)
from rewardflow.shared_agent.ray_actor import status, stop

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own

torch.set_num_threads(1)

AGENT = "agent of the cluster tests"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> RunSettings:
    """Five steps in this process, which the others are compared with."""
    settings = settings_in(tmp_path_factory.mktemp("alone"), runtime=RuntimeSettings())
    train(settings)
    return settings


def assert_same(settings: RunSettings, other: RunSettings) -> None:
    assert losses(settings) == pytest.approx(losses(other), abs=1e-5)
    torch.testing.assert_close(weights_of(settings), weights_of(other), atol=1e-5, rtol=0)
    scores = [line["score_mean"] for line in metrics_in(settings)]
    assert scores == pytest.approx([line["score_mean"] for line in metrics_in(other)])


def test_two_ranks_train_what_one_process_does(tmp_path: Path, cluster: Cluster, alone: RunSettings) -> None:
    settings = settings_in(tmp_path, runtime=on_ray(2))
    told: list[str] = []
    train(settings, tell=told.append)
    assert len(losses(alone)) == 30
    assert len(set(losses(alone))) > 20
    assert_same(settings, alone)
    assert all(line["memory_peak_bytes"] > 1e7 for line in metrics_in(settings))
    assert told[0] == "joining Ray at auto"
    assert told[1].startswith("waiting for room in the cluster: 2 processes with 1 CPU each; free are ")
    assert told[2] == "waiting for 2 ranks to load tiny"
    assert not ray.util.placement_group_table() or all(
        one["state"] == "REMOVED" for one in ray.util.placement_group_table().values()
    )


def test_a_run_goes_on_with_another_number_of_ranks_as_if_nothing_had_happened(
    tmp_path: Path, cluster: Cluster, alone: RunSettings
) -> None:
    train(settings_in(tmp_path, steps=2, runtime=on_ray(2)))
    parts = [name for name in checkpoint_of(settings_in(tmp_path)).files if name.endswith(".distcp")]
    assert len(parts) == 2  # each rank has written its own
    train(settings_in(tmp_path, steps=4, runtime=on_ray(1)), resume=True)
    settings = settings_in(tmp_path, steps=5, runtime=on_ray(2))
    train(settings, resume=True)
    assert checkpoint_of(settings).step == 5
    assert_same(settings, alone)


def test_ranks_and_generators_of_their_own_train_what_one_process_does(
    tmp_path: Path, cluster: Cluster, alone: RunSettings
) -> None:
    schedule = Schedule(groups_per_step=4, mini_batches=2, stream="batch", order="fixed", placement="separate")
    settings = settings_in(tmp_path, schedule=schedule, runtime=on_ray(2, generators=2))
    train(settings)
    assert_same(settings, alone)


@pytest.mark.parametrize("placement", ["colocated", "separate"])
def test_the_reward_rises_with_pipeline_and_one_step_staleness(
    tmp_path: Path, cluster: Cluster, placement: Any
) -> None:
    schedule = Schedule(groups_per_step=8, mini_batches=2, stream="mini_batch", max_staleness=1, placement=placement)
    trainer = TrainerSettings(lr=5e-3, threads=1)
    algorithm = AlgorithmSettings(loss="decoupled")
    settings = settings_in(
        tmp_path, "sevens", schedule=schedule, trainer=trainer, algorithm=algorithm, steps=12, runtime=on_ray(2)
    )
    train(settings)
    lines = metrics_in(settings)
    assert [line["staleness_max"] for line in lines] == [0, *[1] * 11]
    scores = [line["score_mean"] for line in lines]
    assert sum(scores[-3:]) / 3 > sum(scores[:3]) / 3 + 0.2


def test_a_cluster_that_is_too_small_is_refused_with_what_is_needed_and_what_is_there(
    tmp_path: Path, cluster: Cluster
) -> None:
    settings = settings_in(tmp_path, runtime=on_ray(5, cpus=8))
    with pytest.raises(
        InvalidInput,
        match=r"too small: the run needs 5 processes with 8 CPU each, and there is room for 4 on its 1 node \(32 CPU\)",
    ):
        train(settings)
    assert not (tmp_path / "run").exists()


def test_a_cluster_that_others_fill_is_refused_when_the_wait_is_over(tmp_path: Path, cluster: Cluster) -> None:
    others = ray.util.placement_group([{"CPU": 30}])
    ray.get(others.ready())
    try:
        with pytest.raises(InvalidInput, match=r"room within runtime.wait_s=1: .* 4 CPU each \(pack\), and free were"):
            train(settings_in(tmp_path, runtime=on_ray(1, cpus=4, wait_s=1.0)))
    finally:
        ray.util.remove_placement_group(others)


def test_an_error_in_an_actor_is_told_with_its_traceback_in_the_first_lines(cluster: Cluster) -> None:
    actors = ActorGroup("rank", [ray.remote(Rank).remote(0, 1)])
    with pytest.raises(ClusterError) as caught:
        asyncio.run(actors.all("optim_step"))
    actors.kill()
    lines = str(caught.value).splitlines()
    assert lines[0] == "rank 0 of 1 failed: AssertionError: a rank must be opened first"
    assert lines[1] == "Traceback (most recent call last):"
    assert "rank_actor.py" in lines[2]
    assert len(lines) < 12
    assert "RayTaskError" not in str(caught.value)


def test_a_mistake_that_only_a_rank_can_see_is_told_as_it_is(tmp_path: Path, cluster: Cluster) -> None:
    settings = settings_in(tmp_path, trainer=TrainerSettings(device="cuda:7"), runtime=on_ray(2))
    with pytest.raises(InvalidInput, match=r"trainer.device must be a device of this machine, got cuda:7"):
        train(settings)


def take_away(cluster: Cluster, node: Any) -> None:
    """With the processes that run there, which notice a moment after their raylet is killed and end."""
    there = descendants_of(node.all_processes["raylet"][0].process.pid)
    assert there
    cluster.remove_node(node, allow_graceful=False)
    assert wait_until_gone(there) == []


def test_a_run_across_two_nodes_ends_with_a_message_when_one_goes_away_and_resumes_on_what_is_left(
    tmp_path: Path, cluster: Cluster, alone: RunSettings
) -> None:
    other = cluster.add_node(num_cpus=4, object_store_memory=STORE_BYTES, node_ip_address="127.0.0.3")
    saved = CheckpointSettings(every=1)
    settings = settings_in(tmp_path, checkpoint=saved, runtime=on_ray(2, spread="strict_spread"))

    def unplug(report: StepReport) -> None:
        if report.step == 2:
            take_away(cluster, other)

    with pytest.raises(ClusterError, match=r"rank \d of 2 \(node 127.0.0.[23], process \d+\) went away: ") as caught:
        train(settings, on_step=unplug)
    assert "--resume goes on from the last checkpoint" in str(caught.value)
    assert checkpoint_of(settings).step >= 1
    again = settings_in(tmp_path, checkpoint=saved, runtime=on_ray(1))
    train(again, resume=True)
    assert_same(again, alone)


def test_a_reward_node_that_goes_away_in_mid_step_costs_the_run_nothing_but_time(
    tmp_path: Path, cluster: Cluster
) -> None:
    def judging_node() -> Any:
        return cluster.add_node(
            num_cpus=1, resources={"judging": 1}, object_store_memory=STORE_BYTES, node_ip_address=LOOPBACK
        )

    first = judging_node()
    settings = settings_in(
        tmp_path,
        "slow",
        schedule=Schedule(groups_per_step=4, mini_batches=2, stream="mini_batch", max_staleness=1),
        shared_agent=SharedAgentSettings(name=AGENT, resources={"judging": 0.1}),
        limits={"journal": str(tmp_path / "journal.db")},
        runtime=on_ray(1),
    )
    nodes: list[str] = []

    def unplug(report: StepReport) -> None:
        """While verdicts on the next step are out."""
        if report.step in (0, 4):
            nodes.append(status(name=AGENT).node)
        if report.step == 1:
            judging_node()
            take_away(cluster, first)  # with the agent's process, which could else score the remaining steps

    try:
        train(settings, on_step=unplug)
    finally:
        stop(name=AGENT)
    assert len(set(nodes)) == 2
    lines = metrics_in(settings)
    assert [(line["num_scored"], line["failed"], line["dropped"]) for line in lines] == [(16, {}, {})] * 5
