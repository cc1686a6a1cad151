"""Gives each request an id, and recognises the id of another request in a response.

Always true: an id is never used twice, in no process. An id that this process did not make is ignored: many servers
answer with ids of their own.

Some servers send the id back: in a header, or in the body, as vLLM does. A response with the id of another request
belongs to that request.
"""

from __future__ import annotations

import itertools
import os
import re
import secrets
from collections.abc import Mapping

HEADER = "X-Request-Id"


class RequestIds:
    """The ids of one process. The random part comes last, so that a shortened id is not recognised."""

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def new(self) -> str:
        return f"rf-{next(self._numbers):x}{self._ending}"

    def names_another(self, request_id: str, headers: Mapping[str, str], body: bytes) -> bool:
        """Whether the response holds an id of this process, and not the id of its own request."""
        found: list[str] = []
        for value in headers.values():
            if self._ending in value:
                found += self._pattern.findall(value)
        if self._ending_bytes in body:
            found += self._pattern.findall(body.decode("utf-8", "replace"))
        return bool(found) and request_id not in found

    def _renew(self) -> None:
        self._numbers = itertools.count(1)
        self._ending = f"-{secrets.token_hex(8)}"
        self._ending_bytes = self._ending.encode()
        self._pattern = re.compile(f"rf-[0-9a-f]+{self._ending}")


REQUEST_IDS = RequestIds()
