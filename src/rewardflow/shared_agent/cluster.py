"""Joining a Ray cluster, or starting a small one of our own.

Always true: what we started is ended by us, and nothing else is; a private cluster listens on 127.0.0.1 alone.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator

from rewardflow.errors import InvalidInput

_CPUS = 32  # logical ones: they cost nothing, and too few stall placement
_OBJECT_STORE_BYTES = 256 * 2**20


def check_installed() -> None:
    if importlib.util.find_spec("ray") is None:
        raise InvalidInput("the shared agent runs on Ray, which is not installed: pip install 'rewardflow[ray]'")


@contextlib.contextmanager
def joined(address: str) -> Iterator[None]:
    """In a cluster that is there; in the one that this process has joined already, if it has."""
    check_installed()
    import ray

    if ray.is_initialized():
        yield
        return
    try:
        with _own_handler_of_sigterm():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        told = str(error).strip().partition("\n")[0]
        raise InvalidInput(f"the address must be that of a running Ray cluster, got {address!r}: {told}") from error
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _own_handler_of_sigterm() -> Iterator[None]:
    """Ray sets one that ends the process on the spot."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def private_cluster() -> Iterator[None]:
    """One node for as long as the block lasts."""
    check_installed()
    import ray

    folder = tempfile.mkdtemp(prefix="rewardflow-ray-", dir="/tmp")  # sockets need a short path
    with _own_handler_of_sigterm():
        ray.init(
            address="local",
            num_cpus=_CPUS,
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
        )
    try:
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
