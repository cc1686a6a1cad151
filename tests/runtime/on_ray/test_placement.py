"""Whether a cluster can hold a run, from what its nodes have."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.errors import InvalidInput
from rewardflow.runtime.on_ray.placement import Need, check_room, neighbours_together
from rewardflow.settings.run_settings import RuntimeSettings

CPU_NODE, GPU_NODE = {"CPU": 8.0, "memory": 1e9}, {"CPU": 8.0, "GPU": 2.0}


def need(count: int, **fields: Any) -> Need:
    return Need(count=count, **{"cpus": 1.0, "gpus": 0.0, **fields})


def test_a_process_must_fit_on_one_node() -> None:
    check_room(need(2, cpus=8), [CPU_NODE, CPU_NODE])
    with pytest.raises(InvalidInput, match="2 processes with 9 CPU each, and there is room for 0 on its 2 nodes"):
        check_room(need(2, cpus=9), [CPU_NODE, CPU_NODE])


def test_gpus_are_counted_where_they_are() -> None:
    check_room(need(2, gpus=1), [CPU_NODE, GPU_NODE])
    with pytest.raises(InvalidInput, match=r"3 processes with 1 CPU and 1 GPU each, and there is room for 2 .*8 CPU; "):
        check_room(need(3, gpus=1), [CPU_NODE, GPU_NODE])


def test_engines_that_spread_a_model_over_gpus_need_them_on_one_node() -> None:
    check_room(need(3, gpus=1, num_wide=1, width=2), [CPU_NODE, GPU_NODE, GPU_NODE])
    with pytest.raises(
        InvalidInput,
        match=r"4 processes with 1 CPU and 1 GPU each, 2 of them with 2 GPU, and there is room for 2 on its 2 nodes",
    ):
        check_room(need(4, gpus=1, num_wide=2, width=2), [GPU_NODE, GPU_NODE])
    with pytest.raises(InvalidInput, match="room for 1 "):
        check_room(need(2, gpus=1, num_wide=1, width=3), [GPU_NODE])
    assert [one.get("GPU") for one in need(3, gpus=1, num_wide=1, width=2).bundles] == [1, 1, 2]
    assert str(need(2, num_wide=1, width=2)) == "2 processes with 1 CPU each"


def test_strictly_spread_processes_need_a_node_each() -> None:
    check_room(need(2), [CPU_NODE, GPU_NODE], is_strictly_spread=True)
    with pytest.raises(InvalidInput, match="no two of them on one node, and there is room for 2"):
        check_room(need(3), [CPU_NODE, GPU_NODE], is_strictly_spread=True)


def test_each_process_gets_a_gpu_where_there_are_any_unless_told_otherwise() -> None:
    runtime = RuntimeSettings(kind="ray")
    assert Need.of(runtime, count=1, total=GPU_NODE).gpus == 1
    assert Need.of(runtime, count=1, total=CPU_NODE).gpus == 0
    assert Need.of(RuntimeSettings(kind="ray", gpus=0.5), count=1, total=GPU_NODE).gpus == 0.5


def test_a_cluster_that_is_too_small_is_told_what_makes_the_ranks_so_many() -> None:
    needed = Need(count=9, cpus=1.0, gpus=0.0, why="8 ranks: tensor 2 x pipeline 2 x context 1 x data 2")
    with pytest.raises(InvalidInput, match=r"needs 9 processes with 1 CPU each \(8 ranks: tensor 2 .* data 2\), and"):
        check_room(needed, [CPU_NODE])


@given(st.dictionaries(st.integers(0, 20), st.sampled_from("abcd")))
def test_neighbours_are_on_one_node_wherever_that_is_possible(nodes: dict[int, str]) -> None:
    order = neighbours_together(nodes)
    assert sorted(order) == sorted(nodes)
    changes = sum(nodes[one] != nodes[other] for one, other in itertools.pairwise(order))
    assert changes == max(0, len(set(nodes.values())) - 1)
    if nodes:
        assert order[0] == min(nodes)
