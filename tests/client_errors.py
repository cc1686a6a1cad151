"""Exceptions in the shapes of real HTTP clients' exceptions, and dates as their headers have them."""

from __future__ import annotations

import datetime
import email.utils
from types import SimpleNamespace


class HttpxLike(Exception):
    """httpx.HTTPStatusError: everything is on the response."""

    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        super().__init__(f"HTTP {status}")
        self.response = SimpleNamespace(status_code=status, headers=headers or {})


class OpenAILike(Exception):
    """openai.APIStatusError: a status of its own, headers on the response."""

    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        super().__init__(f"Error code: {status}")
        self.status_code = status
        self.response = SimpleNamespace(status_code=status, headers=headers or {})


class AiohttpLike(Exception):
    """aiohttp.ClientResponseError: all of its own."""

    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        super().__init__(f"{status}")
        self.status = status
        self.headers = headers


SHAPES = [HttpxLike, OpenAILike, AiohttpLike]


def http_date(seconds_from_now: float) -> str:
    moment = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds_from_now)
    return email.utils.format_datetime(moment, usegmt=True)
