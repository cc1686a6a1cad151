"""Where torch.distributed listens: on the address that Ray knows the node by, and where that is local, on no other.

Always true: ranks of a cluster that lives on 127.0.0.1 cannot be reached from other machines.
"""

from __future__ import annotations

import ipaddress
import os
import socket

_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")  # by which these libraries are told theirs


def listener_on(host: str) -> socket.socket:
    """Listening on a free port of this address alone."""
    return socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


def stay_on(host: str) -> None:
    """Keep this process's collectives on the loopback interface if its node is; what the user has set stays.

    By itself gloo takes the address that the machine's name stands for, which others can reach.
    """
    if ipaddress.ip_address(host).is_loopback:
        loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
        for variable in _INTERFACES:
            os.environ.setdefault(variable, loopback)
