"""A verl reward function over `rewardflow serve`, for releases of verl that the plug-in does not know.

    custom_reward_function.path=.../rewardflow/adapters/http_reward.py
    custom_reward_function.name=compute_score

Always true: all workers ask the one server at `REWARDFLOW_URL`, so one limit, one cap and one journal hold for all of
them. A rollout is known by its content, so a worker that asks again pays nothing. A failure raises; it is never a 0.
The token goes to that server alone, and a warning tells if others on the way can read it.
This file imports nothing but the standard library, so that it also works where rewardflow is not installed.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import logging
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

logger = logging.getLogger(__name__)

URL_ENV, TOKEN_ENV, RUN_ENV = "REWARDFLOW_URL", "REWARDFLOW_TOKEN", "REWARDFLOW_RUN"
_BUSY = (429, 503)  # the queue is full, or the server restarts: both pass
_TRY_FOR_S, _PAUSE_S = 600.0, 1.0
_LOST = (OSError, http.client.HTTPException)  # the second: a server that ended in the middle of its answer
_SILENT_S = 120.0  # after so long without an answer the server must show that it is alive
_warned_of: set[str] = set()  # hosts


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Makes an answer that names another address an error: urllib would send the token there."""

    def redirect_request(self, *_: Any) -> None:
        return None


_SERVER = urllib.request.build_opener(
    urllib.request.ProxyHandler({}), _NoRedirect
)  # a proxy for the internet must not get the token


def compute_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, **_: Any) -> float:
    """Returns the server's verdict; raises `RuntimeError` with the server's reason if the response was not judged."""
    question = {"prompt": _prompt(extra_info), "response": solution_str, "label": ground_truth}
    body = json.dumps({**question, "data_source": data_source}, default=_plain).encode()
    give_up_s = time.monotonic() + _TRY_FOR_S
    while True:
        try:
            with _SERVER.open(_request("/slime", body), timeout=_SILENT_S) as answer:
                return float(json.load(answer))
        except urllib.error.HTTPError as error:
            reason = error.read(2000).decode("utf-8", "replace")
            if error.code not in _BUSY or time.monotonic() > give_up_s:
                raise RuntimeError(f"rewardflow serve answered {error.code}: {reason}") from None
        except _LOST as error:  # no connection, a broken or a silent one: asking again joins the call
            if isinstance(error, TimeoutError) and _is_alive():
                give_up_s = time.monotonic() + _TRY_FOR_S  # the verdict takes long, and the server sets its limit
            elif time.monotonic() > give_up_s:
                raise RuntimeError(f"no answer from {URL_ENV}: {error}") from None
        time.sleep(_PAUSE_S)


def _is_alive() -> bool:
    try:
        with _SERVER.open(_request("/healthz"), timeout=_SILENT_S / 10) as answer:
            return bool(answer.status == 200)
    except _LOST:
        return False


def _request(path: str, body: bytes | None = None) -> urllib.request.Request:
    url = os.environ.get(URL_ENV, "http://127.0.0.1:8078").rstrip("/") + path
    headers = {"Content-Type": "application/json", "X-Rewardflow-Run": os.environ.get(RUN_ENV, "verl")}
    if token := os.environ.get(TOKEN_ENV):
        headers["Authorization"] = f"Bearer {token}"
        _warn_of_readable_token(url)
    return urllib.request.Request(url, body, headers)


def _warn_of_readable_token(url: str) -> None:
    """Warns once for each host to which the token goes over plain http:// and which is another machine."""
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "http" and host not in _warned_of and not _is_this_machine(host):
        _warned_of.add(host)
        logger.warning("a token goes to %s over plain http://, where others on the way can read it: use https://", host)


def _is_this_machine(host: str) -> bool:
    try:
        return host == "localhost" or host.endswith(".localhost") or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _prompt(extra_info: Any) -> str:
    return str(extra_info.get("question") or extra_info.get("prompt") or "") if isinstance(extra_info, dict) else ""


def _plain(value: Any) -> Any:
    """Returns a value that JSON can hold: datasets give references as arrays, also inside of others."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"ground_truth must be made of plain values and arrays, got {type(value).__name__}")
