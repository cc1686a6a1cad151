"""Joining a Ray cluster, or starting a small one of our own.

Always true: what we started is ended by us, and nothing else is; a private cluster lives on the loopback interface, and
takes in nobody without a token that only its own processes have: Ray's servers listen on all addresses, whatever they
are told.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator

from rewardflow.errors import ClusterError, InvalidInput

logger = logging.getLogger(__name__)

_CPUS = 32  # logical ones: they cost nothing, and too few stall placement
_OBJECT_STORE_BYTES = 256 * 2**20
_LOOPBACK = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"  # of 127.0.0.1 Ray makes the network's address
_CONNECT_S = 10.0
_TOKEN_MODE, _TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"


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
    _check_listens(address)
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


def _check_listens(address: str) -> None:
    """Ray itself would try for many minutes. Its own names for clusters, such as `auto`, are for it to look up."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise InvalidInput(f"the address must be that of a running Ray cluster, got {address!r}: {error}") from error


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
    folder = tempfile.mkdtemp(prefix="rewardflow-ray-", dir="/tmp")  # sockets need a short path
    with _own_token():
        import ray

        try:
            _start(folder)
            yield
        finally:
            ray.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


def _start(folder: str) -> None:
    import ray

    try:
        with _own_handler_of_sigterm():
            ray.init(
                address="local",
                num_cpus=_CPUS,
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _node_ip_address=_LOOPBACK,
                _temp_dir=folder,
            )
    except Exception as error:  # Ray raises plain ones, too
        told = str(error).strip().partition("\n")[0]
        raise ClusterError(f"Ray could not be started on this machine: {told}") from error


@contextlib.contextmanager
def _own_token() -> Iterator[None]:
    """In the environment, from where Ray and what it starts take it; one that the user has set stays."""
    if _TOKEN_MODE in os.environ:
        yield
        return
    if "ray" in sys.modules:  # it reads the mode when it is imported
        logger.warning("Ray was imported before the cluster was started, so the cluster has no token of its own")
        yield
        return
    before = os.environ.get(_TOKEN)
    os.environ[_TOKEN_MODE], os.environ[_TOKEN] = "token", secrets.token_hex(32)
    try:
        yield
    finally:
        del os.environ[_TOKEN_MODE], os.environ[_TOKEN]
        if before is not None:
            os.environ[_TOKEN] = before
