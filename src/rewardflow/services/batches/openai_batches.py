"""OpenAI's Batch API: a file of requests is uploaded, a batch is created for it, and two files hold its results.

Always true: the batch's metadata holds our key, by which `find` recognises it.
"""

from __future__ import annotations

import contextlib
import urllib.parse
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Final

from rewardflow.errors import CallError, ServiceError
from rewardflow.services.batches.batch_api import (
    BatchProgress,
    Outcome,
    SentBatch,
    entries_of,
    error_of_status,
    key_of,
    not_processed,
    shown,
    text_of,
    url_under,
)
from rewardflow.services.http.http_client import HttpClient, encode_json

_METADATA: Final = "rewardflow_batch"
_ENDPOINT: Final = "/v1/chat/completions"
_BOUNDARY: Final = "rewardflow-form-boundary-6d1f0a5e"  # JSON lines never hold it at the start of a line
_PAGE: Final = 100
_MAX_PAGES: Final = 50
_OVER: Final = frozenset({"completed", "failed", "expired", "cancelled"})
_CUT_SHORT: Final = frozenset({"expired", "cancelled"})
_FULL_QUEUE: Final = "token_limit_exceeded"
_NOT_REACHED: Final = {"batch_expired": "expired", "batch_cancelled": "was cancelled"}
_CLOCK_SKEW_S: Final = 900.0


class OpenAIBatches:
    """The endpoint under one base URL, with headers that are read anew for each request."""

    def __init__(self, http: HttpClient, base_url: str, headers: Callable[[], Mapping[str, str]]) -> None:
        self._http = http
        self._base_url = base_url
        self._headers = headers

    def encode(self, key: str, payload: Mapping[str, Any]) -> bytes:
        return encode_json({"custom_id": key, "method": "POST", "url": _ENDPOINT, "body": payload})

    async def create(self, key: str, parts: Sequence[bytes]) -> str:
        uploaded = await self._http.post_body(
            url_under(self._base_url, "/files"),
            _form(b"\n".join((*parts, b""))),
            content_type=f"multipart/form-data; boundary={_BOUNDARY}",
            headers=self._headers(),
        )
        order = {
            "input_file_id": text_of(uploaded, "id"),
            "endpoint": _ENDPOINT,
            "completion_window": "24h",
            "metadata": {_METADATA: key},
        }
        created = await self._http.post_json(url_under(self._base_url, "/batches"), order, headers=self._headers())
        return text_of(created, "id")

    async def find(self, sent: SentBatch) -> str | None:
        """Looks through the list, newest first, back to the time before the batch was sent."""
        after = ""
        for _ in range(_MAX_PAGES):
            url = url_under(self._base_url, "/batches", f"limit={_PAGE}{after}")
            page = await self._http.get_json(url, headers=self._headers())
            batches = list(entries_of(page))
            for batch in batches:
                metadata = batch.get("metadata")
                if isinstance(metadata, Mapping) and metadata.get(_METADATA) == sent.key:
                    return text_of(batch, "id")
            if not batches or not page.get("has_more") or _is_older(batches[-1], sent.made_s):
                return None
            after = f"&after={urllib.parse.quote(text_of(batches[-1], 'id'))}"
        return None

    async def progress(self, batch_id: str) -> BatchProgress:
        batch = await self._http.get_json(self._place(batch_id), headers=self._headers())
        status = text_of(batch, "status")
        files = (batch.get("output_file_id"), batch.get("error_file_id"))
        problem: CallError | None = None
        if status == "failed":
            problem = _refusal(batch.get("errors"))
        elif status in _CUT_SHORT:
            problem = not_processed("expired" if status == "expired" else "was cancelled")
        return BatchProgress(status in _OVER, tuple(one for one in files if isinstance(one, str) and one), problem)

    async def results(self, progress: BatchProgress) -> AsyncGenerator[tuple[str, Outcome], None]:
        for file_id in progress.places:
            url = url_under(self._base_url, f"/files/{urllib.parse.quote(file_id, safe='')}/content")
            async with contextlib.aclosing(self._http.get_lines(url, headers=self._headers())) as lines:
                async for line in lines:
                    if (key := key_of(line)) is not None:
                        yield key, _outcome(line)

    async def cancel(self, batch_id: str) -> None:
        await self._http.post_json(self._place(batch_id, "/cancel"), {}, headers=self._headers())

    def _place(self, batch_id: str, route: str = "") -> str:
        return url_under(self._base_url, f"/batches/{urllib.parse.quote(batch_id, safe='')}{route}")


def _form(lines: bytes) -> bytes:
    """Returns a form with the file and its purpose."""
    head = (
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="requests.jsonl"\r\n'
        "Content-Type: application/jsonl\r\n\r\n"
    )
    return b"%b%b\r\n--%b--\r\n" % (head.encode(), lines, _BOUNDARY.encode())


def _is_older(batch: Mapping[str, Any], made_s: float) -> bool:
    created_s = batch.get("created_at")
    return isinstance(created_s, int | float) and created_s < made_s - _CLOCK_SKEW_S


def _refusal(errors: Any) -> CallError:
    """Returns the error of a batch that the service did not accept, and did not charge for."""
    listed = list(entries_of(errors))
    is_full = any(one.get("code") == _FULL_QUEUE for one in listed)
    said = shown([one.get("message") for one in listed] or errors)
    return ServiceError(f"the service refused the batch: {said}", retryable=is_full, was_sent=False)


def _outcome(line: Mapping[str, Any]) -> Outcome:
    response, error = line.get("response"), line.get("error")
    if isinstance(response, Mapping):
        status, body = response.get("status_code"), response.get("body")
        if status == 200 and isinstance(body, Mapping):
            return body
        if isinstance(status, int):
            return error_of_status(status, f"the service answered {status} in a batch: {shown(body)}")
    code = error.get("code") if isinstance(error, Mapping) else None
    if code in _NOT_REACHED:
        return not_processed(_NOT_REACHED[code])
    return ServiceError(f"the service answered with an error in a batch: {shown(error)}")
