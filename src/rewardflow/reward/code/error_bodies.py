"""Reads what a service said in the answer that made a client raise: the body of httpx, requests and openai errors.

Always true: nothing here raises, waits or reads from a connection: a body that the client has not read is left alone.
The text is on one line and bounded. It may hold secrets: the caller redacts it, and then shortens it, because half a
secret cannot be recognised. No client has to be installed.
"""

from __future__ import annotations

from typing import Any, Final

MAX_READ_CHARS: Final = 16_384


def body_of_error(error: BaseException) -> str:
    """Returns the body of the answer that the exception tells about; empty if there is none."""
    response = getattr(error, "response", None)
    said = "" if response is None else body_of_response(response)
    if not said:
        body = getattr(error, "body", None)  # openai and anthropic parse it
        said = "" if body is None else _one_line(_text(body))
    return said


def body_of_response(response: Any) -> str:
    """Returns the text of a response as far as the client has read it."""
    try:
        if getattr(response, "_content", None) is False:  # requests would read it from the connection now
            return ""
        text = response.text  # httpx raises if it has not read the body
        return _one_line(text) if isinstance(text, str) else ""
    except Exception:
        return ""


def _text(body: Any) -> str:
    try:
        return body if isinstance(body, str) else repr(body)
    except Exception:
        return ""


def _one_line(text: str) -> str:
    return " ".join(text[:MAX_READ_CHARS].split())
