"""What a batch endpoint can do, whichever provider it belongs to.

Always true: an outcome is an answer in the form of a chat completion, or a `CallError`; an error that is free of charge
says so (`faults.is_free_of_charge`).
"""

from __future__ import annotations

import urllib.parse
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rewardflow.errors import CallError, RateLimited, ServiceError
from rewardflow.observe.redact import redact

Outcome = Mapping[str, Any] | CallError

_MAX_EXCERPT_CHARS = 300


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """A batch as its service shows it. `problem` is the outcome of requests for which there is no result."""

    is_over: bool
    places: tuple[str, ...] = ()  # of the results, once the batch is over
    problem: CallError | None = None


@dataclass(frozen=True, slots=True)
class SentBatch:
    """A batch that may have been created: everything by which its service can find it again."""

    key: str
    keys_of_requests: frozenset[str]
    made_s: float  # Unix time, before it was sent
    other_ids: frozenset[str]  # of batches that are known to be others


class Undecided(Exception):
    """The service cannot tell yet whether it has the batch."""


class BatchApi(Protocol):
    """The endpoint of one address."""

    def encode(self, key: str, payload: Mapping[str, Any]) -> bytes:
        """Returns the part of a batch that asks for this chat completion. Raises `InvalidInput` if it cannot."""

    async def create(self, key: str, parts: Sequence[bytes]) -> str:
        """Creates a batch and returns its id."""

    async def find(self, sent: SentBatch) -> str | None:
        """Returns the id of a batch that was created without its id having arrived; None if there is none."""

    async def progress(self, batch_id: str) -> BatchProgress: ...

    def results(self, progress: BatchProgress) -> AsyncGenerator[tuple[str, Outcome], None]:
        """Yields the key and the outcome of each request that has a result."""

    async def cancel(self, batch_id: str) -> None: ...


def error_of_status(status: int, message: str) -> CallError:
    """Returns the error of one request of a batch with this status. Both services charge for answers only."""
    if status == 429:
        return RateLimited(message)
    return ServiceError(message, status=status, retryable=status >= 500 or status in (408, 409), was_sent=False)


def not_processed(why: str) -> ServiceError:
    """Returns the error of a request that the service never came to, and so did not charge for."""
    return ServiceError(f"the batch {why} before this request was processed", was_sent=False)


def shown(value: Any) -> str:
    text = redact(value if isinstance(value, str) else repr(value))
    return text if len(text) <= _MAX_EXCERPT_CHARS else f"{text[: _MAX_EXCERPT_CHARS - 3]}..."


def url_under(base_url: str, route: str, query: str = "") -> str:
    """Returns the URL of a route under the base, whose own query stays: some gateways ask for one in each request."""
    parts = urllib.parse.urlsplit(base_url)
    queries = [one for one in (parts.query, query) if one]
    return parts._replace(path=parts.path + route, query="&".join(queries)).geturl()


def text_of(answer: Any, name: str) -> str:
    """Returns a text that an answer of the service must have."""
    value = answer.get(name) if isinstance(answer, Mapping) else None
    if not isinstance(value, str) or not value:
        raise ServiceError(f"the batch endpoint answered without {name}: {shown(answer)}")
    return value


def key_of(line: Any) -> str | None:
    """Returns the key of a request that a line of results names; None if it names none, which tells nothing."""
    key = line.get("custom_id") if isinstance(line, Mapping) else None
    return key if isinstance(key, str) else None


def entries_of(page: Any) -> Iterable[Mapping[str, Any]]:
    """Returns the objects on one page of a list."""
    data = page.get("data") if isinstance(page, Mapping) else None
    return [one for one in data if isinstance(one, Mapping)] if isinstance(data, list) else []
