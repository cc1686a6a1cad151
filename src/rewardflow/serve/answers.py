"""The answers of the server: JSON, and errors with a status, a type and a message.

Always true: an error is an object `{"error": {"message", "type"}}` and holds no secret. What is not a verdict is never
answered with a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiohttp import web

from rewardflow.observe.redact import redact
from rewardflow.serve.plain_records import to_json
from rewardflow.types import FailureKind, Reward

JSON: Final = "application/json"
RETRY_AFTER_S: Final = 1

_STATUS_OF_KIND: Final[Mapping[FailureKind, int]] = {
    "timeout": 504,
    "rate_limited": 502,
    "service": 502,
    "unparsable": 502,
    "user_error": 500,
    "cancelled": 503,
    "budget": 402,
    "outage": 503,
}


def json_answer(value: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(status=status, body=to_json(value), content_type=JSON, headers=headers)


def error_answer(status: int, message: str, kind: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return json_answer({"error": {"message": redact(message), "type": kind}}, status=status, headers=headers)


def failure_answer(reward: Reward) -> web.Response:
    """The answer about a failed verdict, for protocols that have no word for it."""
    kind = reward.kind or "user_error"
    headers = {"X-Rewardflow-Failure": kind}
    return error_answer(_STATUS_OF_KIND[kind], f"the rollout was not judged: {reward.error}", kind, headers)
