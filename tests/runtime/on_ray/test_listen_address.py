"""Where ranks can be reached."""

from __future__ import annotations

import os
import socket

import pytest

from rewardflow.runtime.on_ray.listen_address import listener_on, stay_on


def test_a_listener_is_on_the_one_address() -> None:
    with listener_on("127.0.0.7") as listener:
        port = listener.getsockname()[1]
        assert listener.getsockname()[0] == "127.0.0.7"
        with socket.create_connection(("127.0.0.7", port), timeout=5):
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.8", port), timeout=5)


def test_collectives_of_a_local_node_stay_local_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    for name in names:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    stay_on("10.0.0.5")
    assert not any(name in os.environ for name in names)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7")
    stay_on("127.0.0.1")
    assert os.environ["GLOO_SOCKET_IFNAME"] in {name for _, name in socket.if_nameindex()}
    assert os.environ["NCCL_SOCKET_IFNAME"] == "eth7"
