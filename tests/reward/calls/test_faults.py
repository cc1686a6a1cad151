"""Exceptions of every client become one of a closed set of kinds, by their shape alone."""

from __future__ import annotations

import math

import pytest

import rewardflow as rf
from rewardflow.reward.calls.faults import fault_of


class FakeResponse:
    def __init__(self, status_code: int, headers: dict[str, str]) -> None:
        self.status_code = status_code
        self.headers = headers


class HTTPStatusError(Exception):
    """The shape of httpx, openai and requests: a response with a status and headers."""

    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        super().__init__(f"status {status}")
        self.response = FakeResponse(status, headers or {})


class ClientResponseError(Exception):
    """The shape of aiohttp: the status is on the error itself."""

    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.headers = headers or {}


@pytest.mark.parametrize("shape", [HTTPStatusError, ClientResponseError])
@pytest.mark.parametrize(
    ("status", "kind", "is_retryable"),
    [(429, "rate_limited", True), (500, "service", True), (503, "service", True), (400, "service", False)],
)
def test_a_status_decides_kind_and_retry(shape: type[Exception], status: int, kind: str, is_retryable: bool) -> None:
    fault = fault_of(shape(status))
    assert (fault.kind, fault.is_retryable) == (kind, is_retryable)


def test_retry_after_is_read_from_the_response() -> None:
    assert fault_of(HTTPStatusError(429, {"Retry-After": "7"})).retry_after_s == 7.0


@pytest.mark.parametrize("code", [401, 403, 404, 422, 501])
def test_asking_again_cannot_help_with_other_client_errors(code: int) -> None:
    assert not fault_of(ClientResponseError(code)).is_retryable


def test_what_reward_code_says_itself_is_taken_as_said() -> None:
    limited = fault_of(rf.RateLimited(retry_after_s=7))
    assert (limited.kind, limited.retry_after_s, limited.is_retryable) == ("rate_limited", 7, True)
    assert not fault_of(rf.ServiceError("gone", retryable=False)).is_retryable
    assert fault_of(rf.Unparsable("no score in it")).kind == "unparsable"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TimeoutError(), "timeout"),
        (ConnectionResetError(), "service"),
        (type("ReadTimeout", (type("TimeoutException", (Exception,), {}),), {})(), "timeout"),
        (type("ServerDisconnectedError", (type("ClientConnectionError", (Exception,), {}),), {})(), "service"),
        (KeyError("score"), "user_error"),
        (OSError(2, "No such file"), "user_error"),
    ],
)
def test_errors_without_a_status_go_by_their_family(error: Exception, kind: str) -> None:
    assert fault_of(error).kind == kind


def test_no_key_reaches_the_message() -> None:
    fault = fault_of(ValueError("Incorrect API key provided: sk-abcdefghijklmnopqrstuvwxyz123456"))
    assert "sk-abc" not in fault.message


@pytest.mark.parametrize("asked_s", [315_360_000.0, math.inf, math.nan])
def test_a_wait_of_years_is_no_wait(asked_s: float) -> None:
    assert fault_of(rf.RateLimited(retry_after_s=asked_s)).retry_after_s is None
    assert fault_of(rf.ServiceError(retry_after_s=asked_s)).retry_after_s is None
    assert fault_of(rf.RateLimited(retry_after_s=7)).retry_after_s == 7


def test_an_exception_without_a_text_is_described_all_the_same() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert fault_of(ValueError(deep)).message == "ValueError: its text cannot be made: RecursionError"


class Broken(Exception):
    @property
    def response(self) -> None:
        raise RuntimeError("no response")


def odd_service_error() -> rf.ServiceError:
    error = rf.ServiceError("odd")
    error.status = []  # type: ignore[assignment]
    return error


@pytest.mark.parametrize("error", [Broken("odd"), odd_service_error()])
def test_an_exception_that_cannot_be_looked_at_is_an_error_of_the_reward(error: Exception) -> None:
    fault = fault_of(error)
    assert (fault.kind, fault.is_retryable) == ("user_error", False)
    assert "odd" in fault.message


def test_a_group_of_exceptions_is_what_its_first_one_is() -> None:
    """`asyncio.TaskGroup` raises a group, also around a single error."""
    limited = HTTPStatusError(429, {"Retry-After": "7"})
    inner = ExceptionGroup("unhandled errors in a TaskGroup", [limited, ValueError("then this")])
    fault = fault_of(ExceptionGroup("around it", [inner]))
    assert (fault.kind, fault.is_retryable, fault.retry_after_s) == ("rate_limited", True, 7.0)
    assert fault.message == "HTTPStatusError: status 429"
