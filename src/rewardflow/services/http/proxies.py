"""Which proxy a request goes through: the one that the environment names, as curl, requests and openai's client do.

Always true: what `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` (in either case) say is read once for each
host; a request to this machine itself never leaves it; the password of a proxy is in no message.

aiohttp's `trust_env` would read them too, but hands every request to a thread twice to do so, and sends what `~/.netrc`
holds for a host.
"""

from __future__ import annotations

import base64
import ipaddress
import urllib.parse
import urllib.request
from dataclasses import dataclass, field

from rewardflow.errors import InvalidInput
from rewardflow.observe.redact import redact


@dataclass(frozen=True, slots=True)
class Proxy:
    """Where to send, and what opens it; `headers` hold the password, if there is one."""

    url: str
    headers: dict[str, str] = field(default_factory=dict, repr=False)


class EnvironmentProxies:
    """The proxies of the environment as it was when each host was first asked about."""

    def __init__(self) -> None:
        self._by_host: dict[tuple[str, str], Proxy | None] = {}

    def proxy_of(self, url: str) -> Proxy | None:
        """None where the request goes straight to its host."""
        parts = urllib.parse.urlsplit(url)
        place = (parts.scheme, parts.netloc)
        if place not in self._by_host:
            self._by_host[place] = _from_environment(parts)
        return self._by_host[place]


def _from_environment(target: urllib.parse.SplitResult) -> Proxy | None:
    named = urllib.request.getproxies_environment()
    address = named.get(target.scheme) or named.get("all")
    host = target.hostname or ""
    if not address or _is_this_machine(host):
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
    secret = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
    return Proxy(url, {"Proxy-Authorization": f"Basic {base64.b64encode(secret.encode()).decode()}"})


def _is_this_machine(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
