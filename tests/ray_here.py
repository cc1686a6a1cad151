"""Ray on this machine for as long as a block lasts: one node, or a cluster to which a test adds others."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import ray
from ray.cluster_utils import Cluster

LOOPBACK = "127.0.0.2"  # who joins 127.0.0.1 is led by Ray to the machine's address in the network
STORE_BYTES = 128 * 2**20


@contextlib.contextmanager
def one_node(*, num_cpus: int, **options: Any) -> Iterator[None]:
    """`options` are those of `ray.init`."""
    with _folder() as folder:
        ray.init(
            address="local",
            num_cpus=num_cpus,
            include_dashboard=False,
            object_store_memory=STORE_BYTES,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _node_ip_address=LOOPBACK,
            _temp_dir=folder,
            **options,
        )
        try:
            yield
        finally:
            ray.shutdown()


@contextlib.contextmanager
def growing_cluster(*, num_cpus: int) -> Iterator[Cluster]:
    """Has one node, and this process has joined it."""
    os.makedirs("/tmp/ray", exist_ok=True)  # where Ray notes the newest cluster, whatever its own folder is
    with _folder() as folder:
        head = {
            "num_cpus": num_cpus,
            "include_dashboard": False,
            "object_store_memory": STORE_BYTES,
            "node_ip_address": LOOPBACK,
            "temp_dir": folder,
        }
        cluster = Cluster(initialize_head=True, head_node_args=head)
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR, _node_ip_address=LOOPBACK)
        try:
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="rf-ray-", dir="/tmp")  # sockets need a short path
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
