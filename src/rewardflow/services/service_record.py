"""The base classes of services: frozen records of settings that create their connections and caches when needed.

Always true: a copy in another process gets the settings only, and creates its own connections and caches.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import Any

from rewardflow.observe.redact import redact, register_address
from rewardflow.reward.journal.canonical import OUTSIDE_IDENTITY
from rewardflow.services.http.endpoint import check_flag
from rewardflow.services.http.http_client import HttpClient


@dataclass(frozen=True, eq=False, kw_only=True)
class ServiceRecord:
    """A service. Everything it derives from its settings is a `cached_property`."""

    def __init_subclass__(cls) -> None:
        cls.__repr__ = ServiceRecord.__repr__  # type: ignore[method-assign]  # `dataclass` replaces no own `__repr__`

    def __repr__(self) -> str:
        """Shows the settings without keys: an address may hold one."""
        shown = (f"{one.name}={getattr(self, one.name)!r}" for one in dataclasses.fields(self) if one.repr)
        return redact(f"{type(self).__qualname__}({', '.join(shown)})")

    def __getstate__(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for value in state.values():
            for text in value if isinstance(value, tuple) else (value,):
                if isinstance(text, str) and "://" in text:
                    register_address(text)  # this process must know them, too


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
