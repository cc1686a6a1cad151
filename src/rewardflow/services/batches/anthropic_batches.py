"""Anthropic's Message Batches: a batch is created with its requests, and one file holds their results at its end.

Always true: a batch is recognised by the keys of its requests, which nobody else uses. A batch has no metadata, and its
results can be read only when it has ended; so `find` stays undecided while a batch runs that could be the one.
"""

from __future__ import annotations

import contextlib
import urllib.parse
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from rewardflow.errors import CallError, ServiceError
from rewardflow.services.batches.anthropic_messages import chat_completion_of, message_params
from rewardflow.services.batches.batch_api import (
    BatchProgress,
    Outcome,
    SentBatch,
    Undecided,
    entries_of,
    error_of_status,
    key_of,
    not_processed,
    shown,
    text_of,
    url_under,
)
from rewardflow.services.http.http_client import HttpClient, encode_json

_PAGE: Final = 100
_MAX_PAGES: Final = 50
_CLOCK_SKEW_S: Final = 900.0
_STATUS_OF: Final = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}


class AnthropicBatches:
    """The endpoint under one base URL, with headers that are read anew for each request."""

    def __init__(self, http: HttpClient, base_url: str, headers: Callable[[], Mapping[str, str]]) -> None:
        self._http = http
        self._url = url_under(base_url, "/messages/batches")
        self._headers = headers

    def encode(self, key: str, payload: Mapping[str, Any]) -> bytes:
        return encode_json({"custom_id": key, "params": message_params(payload)})

    async def create(self, key: str, parts: Sequence[bytes]) -> str:
        body = b'{"requests":[%b]}' % b",".join(parts)
        created = await self._http.post_body(self._url, body, content_type="application/json", headers=self._headers())
        return text_of(created, "id")

    async def find(self, sent: SentBatch) -> str | None:
        after, may_be_running = "", False
        for _ in range(_MAX_PAGES):
            url = url_under(self._url, "", f"limit={_PAGE}{after}")
            page = await self._http.get_json(url, headers=self._headers())
            batches = list(entries_of(page))
            for batch in batches:
                if not _may_be(batch, sent):
                    continue
                if batch.get("processing_status") != "ended":
                    may_be_running = True
                elif await self._holds_one_of(text_of(batch, "id"), sent.keys_of_requests):
                    return text_of(batch, "id")
            if not batches or not page.get("has_more") or _is_older(batches[-1], sent.made_s):
                break
            after = f"&after_id={urllib.parse.quote(text_of(batches[-1], 'id'))}"
        if may_be_running:
            raise Undecided
        return None

    async def _holds_one_of(self, batch_id: str, keys: frozenset[str]) -> bool:
        async with contextlib.aclosing(self._results_of(batch_id)) as results:
            async for key, _ in results:
                return key in keys
        return False

    async def progress(self, batch_id: str) -> BatchProgress:
        batch = await self._http.get_json(self._place(batch_id), headers=self._headers())
        return BatchProgress(text_of(batch, "processing_status") == "ended", (batch_id,))

    async def results(self, progress: BatchProgress) -> AsyncGenerator[tuple[str, Outcome], None]:
        for batch_id in progress.places:
            async with contextlib.aclosing(self._results_of(batch_id)) as results:
                async for key, result in results:
                    yield key, _outcome(result)

    async def cancel(self, batch_id: str) -> None:
        await self._http.post_json(self._place(batch_id, "/cancel"), {}, headers=self._headers())

    async def _results_of(self, batch_id: str) -> AsyncGenerator[tuple[str, Any], None]:
        # Not the batch's own results_url: a key goes only to the address that the settings name.
        url = self._place(batch_id, "/results")
        async with contextlib.aclosing(self._http.get_lines(url, headers=self._headers())) as lines:
            async for line in lines:
                if (key := key_of(line)) is not None:
                    yield key, line.get("result")

    def _place(self, batch_id: str, route: str = "") -> str:
        return url_under(self._url, f"/{urllib.parse.quote(batch_id, safe='')}{route}")


def _may_be(batch: Mapping[str, Any], sent: SentBatch) -> bool:
    """Whether the batch has as many requests, is not older and is not known to be another."""
    if batch.get("id") in sent.other_ids or _is_older(batch, sent.made_s):
        return False
    counts = batch.get("request_counts")
    if not isinstance(counts, Mapping):
        return True
    return sum(one for one in counts.values() if isinstance(one, int)) == len(sent.keys_of_requests)


def _is_older(batch: Mapping[str, Any], made_s: float) -> bool:
    try:
        created_s = datetime.fromisoformat(str(batch.get("created_at"))).timestamp()
    except ValueError:
        return False
    return created_s < made_s - _CLOCK_SKEW_S


def _outcome(result: Any) -> Outcome:
    kind = result.get("type") if isinstance(result, Mapping) else None
    match kind:
        case "succeeded" if isinstance(message := result.get("message"), Mapping):
            return chat_completion_of(message)
        case "expired":
            return not_processed("expired")
        case "canceled":
            return not_processed("was cancelled")
        case "errored":
            return _error(result.get("error"))
    return ServiceError(f"the service answered with an unknown result in a batch: {shown(result)}")


def _error(error: Any) -> CallError:
    """Returns the error of a request that was not processed and is not charged: its type is in an inner object."""
    inner = error.get("error") if isinstance(error, Mapping) else None
    inner = inner if isinstance(inner, Mapping) else error
    kind = inner.get("type") if isinstance(inner, Mapping) else None
    return error_of_status(
        _STATUS_OF.get(str(kind), 500), f"the service answered with an error in a batch: {shown(inner)}"
    )
