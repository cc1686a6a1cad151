"""The base classes of services: frozen records of settings that create their connections and caches when needed.

Always true: a copy in another process gets the settings only, and creates its own connections and caches.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import Any

from rewardflow.reward.journal.canonical import OUTSIDE_IDENTITY
from rewardflow.services.http.endpoint import check_flag
from rewardflow.services.http.http_client import HttpClient


@dataclass(frozen=True, eq=False, kw_only=True)
class ServiceRecord:
    """A service. Everything it derives from its settings is a `cached_property`."""

    def __getstate__(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}


@dataclass(frozen=True, eq=False, kw_only=True)
class HttpServiceRecord(ServiceRecord):
    """A service with its own HTTP connections, which it opens again after `aclose`.

    With `keep_alive=False` each request has a connection of its own.
    """

    keep_alive: bool = field(default=True, metadata=OUTSIDE_IDENTITY)

    def __post_init__(self) -> None:
        check_flag("keep_alive", self.keep_alive)
        _ = self._http  # imports the slow HTTP library now, so that no call waits for it

    async def aclose(self) -> None:
        await self._http.aclose()

    @functools.cached_property
    def _http(self) -> HttpClient:
        return HttpClient(keep_alive=self.keep_alive)
