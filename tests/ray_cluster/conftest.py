"""Needs Ray, which `make test-ray` installs into an environment of its own."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

if importlib.util.find_spec("ray") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One node on this machine, to which tests add others."""
    from ray_here import growing_cluster

    with growing_cluster(num_cpus=32) as cluster:
        yield cluster
