"""Joins a Ray cluster, or starts a private one.

Always true: this module ends the clusters that it started, and no others. A private cluster uses the loopback
interface, and accepts only processes that have its token, because Ray's servers listen on all addresses whatever their
settings say. Its files, sockets and logs are in a folder that only this user may enter.
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
from rewardflow.extras import install_command

logger = logging.getLogger(__name__)

_CPUS = 32  # logical ones: they cost nothing, and too few stall placement
_OBJECT_STORE_BYTES = 256 * 2**20
_LOOPBACK = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"  # Ray replaces 127.0.0.1 by the network address
_CONNECT_S = 10.0
_RAY_FOLDER = "r"  # below a folder of mode 0700, because Ray lets everybody write to its own
_TOKEN_MODE, _TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"


def check_installed() -> None:
    if importlib.util.find_spec("ray") is None:
        raise InvalidInput(f"the shared agent runs on Ray, which is not installed: {install_command('ray')}")


@contextlib.contextmanager
def joined(address: str) -> Iterator[None]:
    """Joins a running cluster for the block; if this process has joined one already, uses that one."""
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
        reason = str(error).strip().partition("\n")[0]
        raise InvalidInput(f"the address must be that of a running Ray cluster, got {address!r}: {reason}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_listens(address: str) -> None:
    """Fails fast if nothing listens there: Ray would try for minutes. Leaves names such as `auto` to Ray."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise InvalidInput(f"the address must be that of a running Ray cluster, got {address!r}: {error}") from error


@contextlib.contextmanager
def _own_handler_of_sigterm() -> Iterator[None]:
    """Restores the process's SIGTERM handler: Ray installs one that ends the process at once."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def private_cluster() -> Iterator[None]:
    """Runs a cluster of one node for the block."""
    check_installed()
    folder = tempfile.mkdtemp(prefix="rewardflow-ray-", dir="/tmp")  # sockets need a short path
    with _own_token():
        import ray

        try:
            _start(os.path.join(folder, _RAY_FOLDER))
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
        reason = str(error).strip().partition("\n")[0]
        raise ClusterError(f"Ray could not be started on this machine: {reason}") from error


@contextlib.contextmanager
def _own_token() -> Iterator[None]:
    """Puts a token into the environment, where Ray and its processes read it; keeps one that the user has set."""
    if _TOKEN_MODE in os.environ:
        yield
        return
    if "ray" in sys.modules:  # it reads the mode when it is imported
        logger.warning("Ray was imported before the cluster was started, so the cluster runs without a token")
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
