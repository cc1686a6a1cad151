"""What the service said in an answer that made another HTTP client raise is part of the failure's text."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rewardflow as rf
from rewardflow.observe.redact import register_secret
from rewardflow.reward.calls.faults import fault_of
from rewardflow.reward.code.error_bodies import MAX_READ_CHARS, body_of_error, body_of_response

SAID = '{"error": {"message": "max_tokens must be at most 4096",\n "code": 7}}'
ONE_LINE = '{"error": {"message": "max_tokens must be at most 4096", "code": 7}}'


class HTTPStatusError(Exception):
    """As of httpx: the response raises if its body was not read."""

    def __init__(self, status: int, text: str | None) -> None:
        super().__init__(f"Client error '{status} Bad Request' for url 'http://judge/v1'")
        self.response: Any = _HttpxResponse(status, text)


class _HttpxResponse:
    def __init__(self, status: int, text: str | None) -> None:
        self.status_code = status
        self.headers: dict[str, str] = {}
        self._text = text

    @property
    def text(self) -> str:
        if self._text is None:
            raise RuntimeError("Attempted to access streaming response content, without having called `read()`")
        return self._text


class HTTPError(Exception):
    """As of requests: `_content` is False until the body was read, and `text` reads it."""

    def __init__(self, status: int, content: bytes | bool) -> None:
        super().__init__(f"{status} Client Error: Bad Request for url: http://judge/v1")
        self.response = SimpleNamespace(status_code=status, headers={}, _content=content)
        if isinstance(content, bytes):
            self.response.text = content.decode()


class BadRequestError(Exception):
    """As of openai: a parsed body, and a message that often holds it."""

    def __init__(self, message: str, body: object) -> None:
        super().__init__(message)
        self.status_code = 400
        self.body = body
        self.response = SimpleNamespace(status_code=400, headers={}, text=None)


@pytest.mark.parametrize("error", [HTTPStatusError(400, SAID), HTTPError(400, SAID.encode())])
def test_the_services_explanation_is_in_the_failure(error: Exception) -> None:
    fault = fault_of(error)
    assert (fault.kind, fault.message) == ("service", f"{type(error).__name__}: {error}: {ONE_LINE}")


def test_the_explanation_of_an_openai_error_is_told_once() -> None:
    body = {"message": "max_tokens must be at most 4096"}
    assert fault_of(BadRequestError("Error code: 400", body)).message.endswith(f"Error code: 400: {body}")
    told = fault_of(BadRequestError(f"Error code: 400 - {body}", body)).message
    assert told.count("max_tokens") == 1


@pytest.mark.parametrize("error", [HTTPStatusError(400, None), HTTPError(400, content=False)])
def test_a_body_that_the_client_has_not_read_is_left_alone(error: Exception) -> None:
    assert body_of_error(error) == ""
    assert fault_of(error).message == f"{type(error).__name__}: {error}"


def test_no_piece_of_a_key_is_left_where_the_explanation_is_cut() -> None:
    register_secret("Abcd1234efgh5678ijkl")
    for place in range(1_975, 2_000):
        told = fault_of(HTTPStatusError(400, "x" * place + "Abcd1234efgh5678ijkl" + "y" * 900)).message
        assert "Abcd" not in told


def test_the_explanation_is_bounded_and_has_no_key() -> None:
    assert len(body_of_response(SimpleNamespace(text="x" * 10**6))) == MAX_READ_CHARS
    assert len(fault_of(HTTPStatusError(400, "x" * 10**6)).message) < 2_100
    told = fault_of(HTTPStatusError(401, "Incorrect API key provided: sk-proj-abcdefghijklmnop1234567890")).message
    assert "Incorrect API key" in told
    assert "abcdefghijklmnop" not in told


@pytest.mark.parametrize("options", [{}, {"workers": "process"}])
def test_the_explanation_of_a_threads_or_a_processs_error_arrives(tmp_path: Path, options: dict[str, Any]) -> None:
    (tmp_path / "reward.py").write_text(
        "class Response:\n"
        "    status_code, headers = 422, {}\n"
        "    text = 'the field `model` is missing'\n\n\n"
        "class HTTPStatusError(Exception):\n"
        "    response = None\n\n\n"
        "def compute_score(solution_str):\n"
        "    error = HTTPStatusError('422')\n"
        "    error.response = Response()\n"
        "    raise error\n"
    )
    rollout = rf.Rollout(group_id="q", response="?")
    (failed,) = rf.score([rollout], f"{tmp_path / 'reward.py'}:compute_score", max_attempts=1, **options)
    assert (failed.kind, failed.error) == ("service", "HTTPStatusError: 422: the field `model` is missing")
