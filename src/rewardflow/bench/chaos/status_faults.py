"""Misbehaviours of a server in its status line: refusals, redirects, waits that make no sense.

Always true: only a status of success carries a score; the bodies of the others hold a decoy.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from rewardflow.bench.chaos.exchange import Carries, Exchange, Misbehaviour

_HTML = b"<html><body><h1>Welcome</h1>quality: 1</body></html>"


def _refusal(status: str, *headers: str) -> Callable[[Exchange], Awaitable[None]]:
    async def answer(x: Exchange) -> None:
        await x.reply(x.completion(x.verdict(x.decoy)), *headers, status=status)

    return answer


def _page(status: str) -> Callable[[Exchange], Awaitable[None]]:
    async def answer(x: Exchange) -> None:
        await x.reply(_HTML, "Content-Type: text/html", status=status)

    return answer


async def redirect_to_itself(x: Exchange) -> None:
    place = f"Location: http://{x.headers.get('host', '127.0.0.1')}/v1/chat/completions"
    await x.reply(x.completion(x.verdict(x.decoy)), place, status="307 Temporary Redirect")


async def no_content(x: Exchange) -> None:
    await x.send(b"HTTP/1.1 204 No Content\r\n\r\n")
    x.stays_open = True


async def not_modified(x: Exchange) -> None:
    await x.send(b"HTTP/1.1 304 Not Modified\r\nETag: 1\r\n\r\n")
    x.stays_open = True


async def empty_success(x: Exchange) -> None:
    await x.reply(b"")


async def text_as_success(x: Exchange) -> None:
    await x.reply(x.completion(), "Content-Type: text/plain")


async def created(x: Exchange) -> None:
    await x.reply(x.completion(), status="201 Created")


async def partial_content(x: Exchange) -> None:
    await x.reply(x.completion(), "Content-Range: bytes 0-10/5000", status="206 Partial Content")


async def absurd_rate_headers(x: Exchange) -> None:
    await x.reply(
        x.completion(),
        "x-ratelimit-limit-requests: 1e400",
        "x-ratelimit-remaining-requests: -17",
        "x-ratelimit-limit-tokens: NaN",
        "x-ratelimit-remaining-tokens: 99999999999999999999999999",
        "x-ratelimit-reset-requests: -5h",
        "ratelimit: limit=, remaining=x; reset=\xff",
    )


_REFUSALS = {
    "found_elsewhere": _refusal("302 Found", "Location: https://example.invalid/other"),
    "moved_nowhere": _refusal("308 Permanent Redirect"),
    "bad_request": _refusal("400 Bad Request"),
    "key_refused": _refusal("401 Unauthorized", "WWW-Authenticate: Bearer"),
    "forbidden": _refusal("403 Forbidden"),
    "model_not_found": _refusal("404 Not Found"),
    "request_timeout": _refusal("408 Request Timeout"),
    "too_large": _refusal("413 Payload Too Large"),
    "teapot": _refusal("418 I'm a teapot"),
    "unprocessable": _refusal("422 Unprocessable Entity"),
    "too_many_requests": _refusal("429 Too Many Requests"),
    "too_many_requests_wait_zero": _refusal("429 Too Many Requests", "Retry-After: 0"),
    "too_many_requests_wait_negative": _refusal("429 Too Many Requests", "Retry-After: -60"),
    "too_many_requests_wait_in_the_past": _refusal(
        "429 Too Many Requests", "Retry-After: Wed, 21 Oct 2015 07:28:00 GMT"
    ),
    "too_many_requests_wait_is_a_word": _refusal("429 Too Many Requests", "Retry-After: soon"),
    "server_error": _refusal("500 Internal Server Error"),
    "server_error_page": _page("500 Internal Server Error"),
    "bad_gateway_page": _page("502 Bad Gateway"),
    "unavailable_until_the_past": _refusal("503 Service Unavailable", "Retry-After: Wed, 21 Oct 2015 07:28:00 GMT"),
    "unavailable_wait_is_not_a_number": _refusal("503 Service Unavailable", "Retry-After: NaN"),
    "gateway_timeout_page": _page("504 Gateway Timeout"),
    "not_implemented": _refusal("501 Not Implemented"),
    "overloaded": _refusal("529 Overloaded"),
    "status_of_no_class": _refusal("799 Whatever"),
    "page_as_success": _page("200 OK"),
}

STATUS_FAULTS = (
    *(Misbehaviour(name, Carries.NOTHING, answer) for name, answer in _REFUSALS.items()),
    *(
        Misbehaviour(answer.__name__, Carries.NOTHING, answer)
        for answer in (redirect_to_itself, no_content, not_modified, empty_success)
    ),
    *(Misbehaviour(answer.__name__, Carries.PERHAPS, answer) for answer in (text_as_success, created, partial_content)),
    Misbehaviour("absurd_rate_headers", Carries.TRUTH, absurd_rate_headers),
)

# Refusals that use up no attempt; the last is in `body_faults`.
RATE_LIMITED = frozenset(
    {*(name for name in _REFUSALS if name.startswith("too_many_requests")), "rate_limit_as_success"}
)
