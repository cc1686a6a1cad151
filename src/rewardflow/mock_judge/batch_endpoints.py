"""Serves batches as two providers do: OpenAI's files and batches, and Anthropic's message batches.

Always true: a path that is not one of theirs is left to the caller; ids that do not exist are answered 404.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from aiohttp import web

from rewardflow.errors import InvalidInput
from rewardflow.mock_judge.batch_orders import BatchOrder, BatchOrders, OrderedRequest, RequestResult
from rewardflow.mock_judge.response_bodies import error_body

_JSON: Final = "application/json"
_FILES: Final = "files"
_OPENAI: Final = "batches"
_ANTHROPIC: Final = "messages"
_EXPIRY_CODES: Final = {"expired": "batch_expired", "cancelled": "batch_cancelled"}
_ANTHROPIC_KINDS: Final = {"answered": "succeeded", "failed": "errored", "expired": "expired", "cancelled": "canceled"}


class BatchEndpoints:
    """The handlers of both, over the same orders. The first `lost_creations` creations get no answer."""

    def __init__(self, orders: BatchOrders, *, lost_creations: int) -> None:
        self._orders = orders
        self._files: dict[str, bytes] = {}
        self._num_to_lose = lost_creations

    def serves(self, path: str) -> bool:
        return path.startswith(("/v1/files", "/v1/batches", "/v1/messages/batches"))

    async def handle(self, request: web.BaseRequest) -> web.Response | None:
        """Answers a request; None breaks the connection, as if the answer were lost."""
        body = await request.read()
        _, _, kind, *rest = request.path.rstrip("/").split("/")
        rest = rest[1:] if kind == _ANTHROPIC else rest
        try:
            match (request.method, kind, rest):
                case ("POST", "files", []):
                    return _json(self._upload(body, request.headers.get("Content-Type", "")))
                case ("GET", "files", [file_id, "content"]) if file_id in self._files:
                    return web.Response(body=self._files[file_id], content_type="application/octet-stream")
                case ("POST", _, []):
                    order = self._create(kind, body)
                    self._num_to_lose -= 1
                    return None if self._num_to_lose >= 0 else _json(self._shown(order, kind))
                case ("GET", _, []) if kind != _FILES:
                    return _json(self._listed(request, kind))
                case (_, _, [batch_id, *action]) if (order_or_none := self._orders.get(batch_id)) is not None:
                    return self._about(request.method, kind, order_or_none, action)
        except InvalidInput as error:
            return _error(400, str(error))
        return _error(404, f"there is nothing at {request.path} for {request.method}")

    # -- creating --

    def _upload(self, body: bytes, content_type: str) -> dict[str, Any]:
        """Takes the file out of the form; the purpose must be `batch`."""
        boundary = content_type.partition("boundary=")[2].strip('"').encode()
        parts = [part.partition(b"\r\n\r\n") for part in body.split(b"--" + boundary)] if boundary else []
        contents = {_name_of(head): data.removesuffix(b"\r\n") for head, _, data in parts}
        if contents.get("purpose") != b"batch" or "file" not in contents:
            raise InvalidInput("a form with a file and the purpose batch is needed")
        file_id = f"file-{len(self._files)}"
        self._files[file_id] = contents["file"]
        return {"id": file_id, "object": "file", "purpose": "batch", "bytes": len(contents["file"])}

    def _create(self, kind: str, body: bytes) -> BatchOrder:
        now_s = asyncio.get_running_loop().time()
        try:
            given = orjson.loads(body)
            if kind == _ANTHROPIC:
                requests = [OrderedRequest(one["custom_id"], _as_chat(one["params"])) for one in given["requests"]]
                return self._orders.create(requests, now_s, metadata={})
            if given["endpoint"] != "/v1/chat/completions" or given["completion_window"] != "24h":
                raise InvalidInput("endpoint must be /v1/chat/completions and completion_window 24h")
            lines = [orjson.loads(line) for line in self._files[given["input_file_id"]].splitlines() if line.strip()]
            requests = [OrderedRequest(line["custom_id"], line["body"]) for line in lines]
            metadata = given.get("metadata") or {}
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise InvalidInput(f"the batch cannot be read: {error!r}") from None
        return self._orders.create(requests, now_s, metadata=metadata, input_file_id=given["input_file_id"])

    # -- looking --

    def _about(self, method: str, kind: str, order: BatchOrder, action: Sequence[str]) -> web.Response:
        now_s = asyncio.get_running_loop().time()
        match (method, [*action]):
            case ("GET", []):
                return _json(self._shown(order, kind))
            case ("POST", ["cancel"]):
                self._orders.cancel(order, now_s)
                return _json(self._shown(order, kind))
            case ("GET", ["results"]) if kind == _ANTHROPIC and (results := self._orders.results_at(order, now_s)):
                return web.Response(body=_lines(map(_anthropic_line, results)), content_type="application/x-jsonl")
        return _error(404, "there is no such action, or it is too early")

    def _listed(self, request: web.BaseRequest, kind: str) -> dict[str, Any]:
        limit = int(request.query.get("limit", "20"))
        after = request.query.get("after_id" if kind == _ANTHROPIC else "after")
        orders = self._orders.newest_first()
        ids = [one.id for one in orders]
        start = ids.index(after) + 1 if after in ids else 0
        page = orders[start : start + limit]
        return {"data": [self._shown(one, kind) for one in page], "has_more": start + limit < len(orders)}

    def _shown(self, order: BatchOrder, kind: str) -> dict[str, Any]:
        results = self._orders.results_at(order, asyncio.get_running_loop().time())
        return self._anthropic_batch(order, results) if kind == _ANTHROPIC else self._openai_batch(order, results)

    def _openai_batch(self, order: BatchOrder, results: Sequence[RequestResult] | None) -> dict[str, Any]:
        status = "in_progress"
        if results is not None:
            has_expired = any(one.kind == "expired" for one in results)
            status = "cancelled" if order.cancelled_s is not None else "expired" if has_expired else "completed"
        good = [one for one in results or () if one.kind == "answered"]
        bad = [one for one in results or () if one.kind != "answered"]
        return {
            "id": order.id,
            "object": "batch",
            "endpoint": "/v1/chat/completions",
            "status": status,
            "input_file_id": order.input_file_id,
            "output_file_id": self._file_of(order, "output", good),
            "error_file_id": self._file_of(order, "error", bad),
            "created_at": int(order.created_s),
            "metadata": dict(order.metadata),
            "request_counts": {"total": len(order.requests), "completed": len(good), "failed": len(bad)},
            "errors": None,
        }

    def _file_of(self, order: BatchOrder, kind: str, results: Sequence[RequestResult]) -> str | None:
        if not results:
            return None
        file_id = f"file-{kind}-{order.id}"
        self._files.setdefault(file_id, _lines(map(_openai_line, results)))
        return file_id

    def _anthropic_batch(self, order: BatchOrder, results: Sequence[RequestResult] | None) -> dict[str, Any]:
        counts = dict.fromkeys(("processing", *_ANTHROPIC_KINDS.values()), 0)
        counts["processing"] = 0 if results is not None else len(order.requests)
        for one in results or ():
            counts[_ANTHROPIC_KINDS[one.kind]] += 1
        return {
            "id": order.id,
            "type": "message_batch",
            "processing_status": "in_progress" if results is None else "ended",
            "request_counts": counts,
            "created_at": datetime.fromtimestamp(order.created_s, UTC).isoformat(),
            "results_url": None,
        }


def _as_chat(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters of a message as the chat completion that the judge understands."""
    if "max_tokens" not in params:
        raise InvalidInput("max_tokens: field required")
    system = [{"role": "system", "content": params["system"]}] if "system" in params else []
    others = {name: value for name, value in params.items() if name not in ("system", "messages")}
    return {**others, "messages": [*system, *params["messages"]]}


def _openai_line(result: RequestResult) -> dict[str, Any]:
    line: dict[str, Any] = {"id": f"req_{result.custom_id}", "custom_id": result.custom_id}
    if result.kind in _EXPIRY_CODES:
        return {**line, "response": None, "error": {"code": _EXPIRY_CODES[result.kind], "message": "not processed"}}
    response = {"status_code": result.status, "request_id": line["id"], "body": result.body}
    return {**line, "response": response, "error": None}


def _anthropic_line(result: RequestResult) -> dict[str, Any]:
    kind = _ANTHROPIC_KINDS[result.kind]
    if kind == "succeeded":
        choice, usage = result.body["choices"][0], result.body["usage"]
        message = {
            "type": "message",
            "role": "assistant",
            "model": result.body["model"],
            "content": [{"type": "text", "text": choice["message"]["content"]}],
            "stop_reason": "max_tokens" if choice["finish_reason"] == "length" else "end_turn",
            "usage": {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]},
        }
        return {"custom_id": result.custom_id, "result": {"type": kind, "message": message}}
    error = {"error": {"type": "error", **result.body}} if kind == "errored" else {}
    return {"custom_id": result.custom_id, "result": {"type": kind, **error}}


def _name_of(head: bytes) -> str:
    return head.partition(b'name="')[2].partition(b'"')[0].decode("utf-8", "replace")


def _lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(orjson.dumps(row) + b"\n" for row in rows)


def _json(data: Mapping[str, Any]) -> web.Response:
    return web.Response(body=orjson.dumps(data), content_type=_JSON)


def _error(status: int, message: str) -> web.Response:
    return web.Response(status=status, body=error_body(message, "invalid_request_error"), content_type=_JSON)
