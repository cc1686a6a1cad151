"""Finds the proxy of a request in the environment, as curl, requests and openai's client do.

Always true: `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` (in upper or lower case) are read once per host. A
request to this machine uses no proxy. No message holds the password of a proxy.

aiohttp's `trust_env` would read the same variables, but it passes every request to a thread twice, and it sends the
password that `~/.netrc` holds for a host.
"""

from __future__ import annotations

import base64
import ipaddress
import urllib.parse
import urllib.request
from dataclasses import dataclass, field

from rewardflow.errors import InvalidInput
from rewardflow.observe.redact import redact, register_address


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy's URL, and headers that hold its password if it has one."""

    url: str
    headers: dict[str, str] = field(default_factory=dict, repr=False)


class EnvironmentProxies:
    """The proxies of the environment; remembers the proxy of each host from the first request."""

    def __init__(self) -> None:
        self._by_host: dict[tuple[str, str], Proxy | None] = {}

    def proxy_of(self, url: str) -> Proxy | None:
        """Returns None if the request goes to its host directly."""
        parts = urllib.parse.urlsplit(url)
        place = (parts.scheme, parts.netloc)
        if place not in self._by_host:
            self._by_host[place] = _from_environment(parts)
        return self._by_host[place]


def _from_environment(target: urllib.parse.SplitResult) -> Proxy | None:
    named = urllib.request.getproxies_environment()
    address = named.get(target.scheme) or named.get("all")
    host = target.hostname or ""
    if not address or is_this_machine(host):
        return None
    place = f"{host}:{target.port}" if target.port else host
    if urllib.request.proxy_bypass(place):
        return None
    return _read_proxy(address)


def _read_proxy(address: str) -> Proxy:
    parts = urllib.parse.urlsplit(address if "://" in address else f"http://{address}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput(f"a proxy of the environment must be an http or https address, got {redact(address)}")
    url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    if parts.username is None:
        return Proxy(url)
    register_address(parts.geturl())
    secret = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
    return Proxy(url, {"Proxy-Authorization": f"Basic {base64.b64encode(secret.encode()).decode()}"})


def is_this_machine(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
