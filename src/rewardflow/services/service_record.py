"""A service is a frozen record of settings; what it needs to run is made of them, where it runs.

Always true: settings travel to other processes, and what was made of them does not.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

from rewardflow.services.http.client import HttpClient


@dataclass(frozen=True, eq=False, kw_only=True)
class ServiceRecord:
    """What is made of the settings is a `cached_property`."""

    def __getstate__(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}


@dataclass(frozen=True, eq=False, kw_only=True)
class HttpServiceRecord(ServiceRecord):
    """A service with connections of its own, which are made again after `aclose`."""

    def __post_init__(self) -> None:
        _ = self._http  # what it imports is slow, and no call should wait for it

    async def aclose(self) -> None:
        await self._http.aclose()

    @functools.cached_property
    def _http(self) -> HttpClient:
        return HttpClient()
