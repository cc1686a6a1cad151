"""Tells whether a request to a server on this machine uses the machine's own address.

Always true: a page of another site cannot use the server through a browser. A browser names the page's site in
`Origin`, and cannot be made to leave it out; a site that lets its own name point to this machine (DNS rebinding) is
known by that name in `Host`. Programs such as curl send no `Origin`.
"""

from __future__ import annotations

import ipaddress
import socket
import urllib.parse
from collections.abc import Mapping


def uses_own_address(headers: Mapping[str, str], listening_on: str) -> bool:
    """Whether the headers of a request name this machine, and no page of another site sent it."""
    host = headers.get("Host", "")
    return _is_own_name(host, listening_on) and headers.get("Origin") in (None, f"http://{host}", f"https://{host}")


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach a server that listens on this address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _is_own_name(host: str, listening_on: str) -> bool:
    try:
        name = urllib.parse.urlsplit(f"//{host}").hostname or ""
    except ValueError:  # a broken IPv6 address
        return False
    if name in ("localhost", listening_on.lower(), socket.gethostname().lower()):
        return True
    try:
        ipaddress.ip_address(name)  # no site can choose it as its name
    except ValueError:
        return False
    return True
