"""Tries whether anybody listens at the addresses that an agent calls.

Always true: nothing is sent; a service behind a proxy, or one that is not called by address, counts as reachable.
"""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import Sequence

from rewardflow.reward.calls.call_records import DispatchStatistics
from rewardflow.services.http.proxies import EnvironmentProxies

_CONNECT_S = 2.0


async def unreachable(accounts: Sequence[DispatchStatistics]) -> str | None:
    """Returns why no address of some account takes a connection; a service that is only slow takes one at once."""
    proxies = EnvironmentProxies()
    for account in accounts:
        names = [endpoint.name or "" for endpoint in account.governors.endpoints]
        if all(name.startswith(("http://", "https://")) and proxies.proxy_of(name) is None for name in names):
            problems = [await _connect(name) for name in names]
            if None not in problems:
                return problems[0]
    return None


async def _connect(url: str) -> str | None:
    """Returns why no connection can be made; None if one can."""
    address = urllib.parse.urlsplit(url)
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(address.hostname, port)
    except TimeoutError:
        return f"{address.hostname}:{port} within {_CONNECT_S:g} s"
    except OSError as error:
        return f"{address.hostname}:{port}: {error}"
    writer.close()
    return None
