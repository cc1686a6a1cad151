"""Makes torch.distributed listen on the address that Ray knows the node by, and on no other if that is local.

Always true: other machines cannot reach the ranks of a cluster on 127.0.0.1.
"""

from __future__ import annotations

import ipaddress
import os
import socket

_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")  # by which these libraries are told theirs


def listener_on(host: str) -> socket.socket:
    """Listens on a free port of this address alone."""
    return socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


def stay_on(host: str) -> None:
    """Keeps this process's collectives on the loopback interface if its node is there; keeps the user's own setting.

    By default gloo takes the address of the machine's name, which others can reach.
    """
    if ipaddress.ip_address(host).is_loopback:
        loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
        for variable in _INTERFACES:
            os.environ.setdefault(variable, loopback)
