"""Classifies the exception of a failed attempt, and says whether a retry can help.

Always true: every exception maps to exactly one failure kind, and a group of exceptions to that of its first one. The
module recognises HTTP clients by the shape of their exceptions (a status, a response, a class name), so that no client
has to be installed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rewardflow.errors import RateLimited, ServiceError, Unparsable
from rewardflow.observe.redact import redact
from rewardflow.reward.code.context_transfer import text_of
from rewardflow.reward.code.error_bodies import body_of_error
from rewardflow.reward.code.user_frames import first_cause, origin_of
from rewardflow.reward.limits.plausible_numbers import WAIT_S
from rewardflow.reward.limits.rate_limit_headers import read_retry_after_s
from rewardflow.types import EMPTY, FailureKind

_CONNECTION_NAMES = frozenset(
    {
        "ClientConnectionError",  # aiohttp, and everything under it
        "ClientPayloadError",
        "TransportError",  # httpx, httpcore, httpx2
        "NetworkError",
        "APIConnectionError",  # openai, anthropic
        "ConnectionError",  # requests (not the builtin), urllib3
        "ChunkedEncodingError",
        "ProtocolError",
        "IncompleteRead",
        "URLError",  # urllib
        "gaierror",
        "SSLError",
    }
)
_TIMEOUT_NAMES = frozenset({"TimeoutError", "Timeout", "TimeoutException", "APITimeoutError", "ServerTimeoutError"})
_RETRYABLE_STATUSES = frozenset({408, 409, 425, 429, 498, *range(500, 600)}) - {501, 505}
_REQUEST_STATUSES = frozenset({400, 413, 414, 415, 422, 431})  # too long, refused by a filter, malformed
_CALLER_STATUSES = frozenset({401, 403})
_UNCHARGED_STATUSES = frozenset({*range(300, 500), 501, 503, 505, 529})  # the service refused the request
_NOT_SENT_NAMES = frozenset(
    {
        "ClientConnectorError",  # aiohttp
        "ConnectError",  # httpx, httpcore
        "ConnectTimeout",  # httpx, requests
        "NewConnectionError",  # urllib3
        "gaierror",
    }
)
_MAX_ERROR_CHARS = 2000  # of an exception's own text; what the service said comes after it
_MAX_BODY_CHARS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why an attempt gave no result."""

    kind: FailureKind
    message: str
    is_retryable: bool = False
    retry_after_s: float | None = None
    headers: Mapping[str, str] = EMPTY
    is_about_request: bool = False  # the service works but cannot serve this request
    is_free: bool = False  # the service refused the request, or never got it, so it cannot have charged for it
    refuses_caller: bool = False  # the service works but does not accept the key
    trace: str = ""  # the user's frames, for a user_error


def fault_of(error: BaseException) -> Fault:
    """Classifies an exception that a reward raised."""
    error = first_cause(error)
    try:
        return _classified(error)
    except Exception:  # raised by a property of the exception, or by an attribute of an odd type
        return user_fault(error)


def _classified(error: BaseException) -> Fault:
    message = describe(error)
    match error:
        case RateLimited():
            headers = error.headers or EMPTY
            wait_s = _wait_s(error.retry_after_s)
            if error.retry_after_s is None:
                wait_s = read_retry_after_s(headers, time.time())
            return Fault(
                kind="rate_limited",
                message=message,
                is_retryable=True,
                retry_after_s=wait_s,
                headers=dict(headers),
                is_free=True,
            )
        case ServiceError():
            return Fault(
                kind="service",
                message=message,
                is_retryable=error.retryable,
                retry_after_s=_wait_s(error.retry_after_s),
                is_about_request=not error.retryable and (error.status is None or error.status in _REQUEST_STATUSES),
                is_free=not error.was_sent or error.status in _UNCHARGED_STATUSES,
                refuses_caller=error.status in _CALLER_STATUSES,
            )
        case Unparsable():
            return Fault(kind="unparsable", message=message, is_retryable=error.retryable)
    status = _http_status(error)
    if status is not None:
        return _fault_of_status(status, _with_body(message, error), _headers(error))
    names = {cls.__name__ for cls in type(error).__mro__}
    is_timeout = isinstance(error, TimeoutError) or isinstance(getattr(error, "reason", None), TimeoutError)
    is_free = _was_not_sent(error)
    if is_timeout or names & _TIMEOUT_NAMES:
        return Fault(kind="timeout", message=message, is_retryable=True, is_free=is_free)
    if isinstance(error, ConnectionError) or names & _CONNECTION_NAMES:
        return Fault(kind="service", message=message, is_retryable=True, is_free=is_free)
    return user_fault(error)


def user_fault(error: BaseException, message: str | None = None, *, defined_at: str = "") -> Fault:
    """Returns the fault of the user's code, with its place; `defined_at` is the place if no frame tells one."""
    error = first_cause(error)
    origin = origin_of(error)
    place = redact(origin.place) or defined_at
    told = describe(error) if message is None else message
    return Fault(kind="user_error", message=f"{told} ({place})" if place else told, trace=redact(origin.trace))


def with_reported_headers(fault: Fault, reported: Mapping[str, str] | None) -> Fault:
    """Returns the fault with the headers that the reward reported before it (`report_headers`)."""
    if not reported:
        return fault
    headers = {**reported, **fault.headers}
    wait_s = fault.retry_after_s if fault.retry_after_s is not None else read_retry_after_s(headers, time.time())
    return replace(fault, headers=headers, retry_after_s=wait_s)


def describe(error: BaseException) -> str:
    """Returns a short description of an exception, without secrets and of bounded length."""
    name, text = type(error).__name__, text_of(error)
    return redact(f"{name}: {text}" if text else name)[:_MAX_ERROR_CHARS]


def describe_with_place(error: BaseException) -> str:
    """Returns the description and where in the user's code the exception was raised."""
    return user_fault(error).message


def _with_body(message: str, error: BaseException) -> str:
    """Adds what the service said, unless the client has put it into its message."""
    body = redact(body_of_error(error))
    if len(body) > _MAX_BODY_CHARS:
        body = f"{body[: _MAX_BODY_CHARS - 3]}..."
    return f"{message}: {body}" if body and body[:100] not in message else message


def _wait_s(asked_s: float | None) -> float | None:
    return None if asked_s is None else WAIT_S.read(asked_s, "retry_after_s")


def _fault_of_status(status: int, message: str, headers: Mapping[str, str]) -> Fault:
    kind: FailureKind = "rate_limited" if status == 429 else "service"
    return Fault(
        kind=kind,
        message=message,
        is_retryable=status in _RETRYABLE_STATUSES,
        retry_after_s=read_retry_after_s(headers, time.time()),
        headers=headers,
        is_about_request=status in _REQUEST_STATUSES,
        is_free=status in _UNCHARGED_STATUSES,
        refuses_caller=status in _CALLER_STATUSES,
    )


def is_free_of_charge(error: Exception) -> bool:
    """Whether the service cannot have charged for the request that ended with this error."""
    return fault_of(error).is_free


def _was_not_sent(error: BaseException) -> bool:
    """Whether no connection was made; `reason` and the cause are looked at, because clients wrap the error."""
    for one in (error, getattr(error, "reason", None), error.__cause__):
        if isinstance(one, ConnectionRefusedError) or (
            isinstance(one, BaseException) and any(cls.__name__ in _NOT_SENT_NAMES for cls in type(one).__mro__)
        ):
            return True
    return False


def _http_status(error: BaseException) -> int | None:
    for holder in (error, getattr(error, "response", None)):
        for name in ("status_code", "status", "code"):
            value = getattr(holder, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and 400 <= value < 600:
                return value
    return None


def _headers(error: BaseException) -> Mapping[str, str]:
    for holder in (error, getattr(error, "response", None)):
        headers: Any = getattr(holder, "headers", None)
        if headers is not None and hasattr(headers, "items"):
            return {str(name).lower(): str(value) for name, value in headers.items()}
    return EMPTY
