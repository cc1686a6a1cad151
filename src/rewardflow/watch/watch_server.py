"""Serves the report of every run in a folder over HTTP, as the run's files are now.

    /                      all runs
    /run?name=KEY          one run
    /compare?one=&other=   two runs
    /rollouts?name=&text=  the newest rollouts of a run that contain a text, as JSON

Always true: the server only reads; it answers nobody without its token, if it has one, and no page of another site; a
name in a URL is looked up among the runs that were found, never used as a path. A page that has not changed is answered
with 304 and no body.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import hmac
import urllib.parse
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from aiohttp import web

from rewardflow.drawing.html_page import json_for_script
from rewardflow.errors import InvalidInput
from rewardflow.observe.own_address import is_loopback, uses_own_address
from rewardflow.report.page_frame import Live
from rewardflow.report.rollouts.rollout_sample import RolloutSample, sample_rollouts
from rewardflow.report.rollouts.rollout_search import find_rollouts
from rewardflow.report.run_data import read_run
from rewardflow.report.run_page import comparison_page, run_page
from rewardflow.watch.page_cache import PageCache
from rewardflow.watch.run_catalogue import FoundRun, find_runs
from rewardflow.watch.runs_page import RunRow, row_of, runs_page

_EVERY_S: Final = 2.0
_MAX_TEXT: Final = 1000
_MAX_PAGES: Final = 32
_COOKIE: Final = "rewardflow_watch"
_CLOSE_S: Final = 0.5
_HEADERS: Final = {
    "Cache-Control": "no-cache, private",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}

_Handler = Callable[[web.BaseRequest], Awaitable[web.Response]]


class WatchServer:
    """Serves in an `async with` block. Without a token it may listen on a loopback address only."""

    def __init__(
        self, folder: Path, *, host: str = "127.0.0.1", port: int = 0, token: str | None = None, rollouts: bool = True
    ) -> None:
        if token is None and not is_loopback(host):
            raise InvalidInput(f"a server that other machines can reach needs a token, got host {host} without one")
        self._folder = folder
        self._host = host
        self._port = port
        self._token = token
        self._shows_rollouts = rollouts
        self._pages: PageCache[str] = PageCache(_MAX_PAGES)
        self._rows: PageCache[RunRow] = PageCache(_MAX_PAGES * 32)
        self._handlers: dict[str, _Handler] = {
            "/": self._all_runs,
            "/run": self._run,
            "/compare": self._compare,
            "/rollouts": self._rollouts,
        }

    async def __aenter__(self) -> Self:
        find_runs(self._folder)  # so that a file in its place ends the command, not the first page
        self._server = web.Server(self._handle, access_log=None)
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(self._server, self._host, self._port)
        except OSError as error:
            reason = error.strerror or error
            raise InvalidInput(
                f"host and port must be free to listen on, got {self._host}:{self._port} ({reason})"
            ) from error
        self.port: int = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.close()
        self._server.pre_shutdown()
        await self._server.shutdown(_CLOSE_S)

    @property
    def url(self) -> str:
        """The address to open, with the token if there is one."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        token = "" if self._token is None else f"?token={urllib.parse.quote(self._token, safe='')}"
        return f"http://{host}:{self.port}/{token}"

    # -- requests --

    async def _handle(self, request: web.BaseRequest) -> web.Response:
        refused = self._refusal(request)
        if refused is not None:
            return refused
        handler = self._handlers.get(request.path)
        if request.method not in ("GET", "HEAD"):
            return _plain(405, f"{request.path} takes GET only")
        if handler is None:
            return _plain(404, f"there is no {request.path[:100]}")
        try:
            return await handler(request)
        except InvalidInput as error:
            return _plain(404, str(error))

    def _refusal(self, request: web.BaseRequest) -> web.Response | None:
        if self._token is None:
            return (
                None if uses_own_address(request.headers, self._host) else _plain(403, "use the server's own address")
            )
        given = request.query.get("token")
        if given is not None and _equal(given, self._token):
            # The address bar, the history and the pages' links then show no token.
            answer = web.Response(status=303, headers={**_HEADERS, "Location": request.path})
            answer.set_cookie(_COOKIE, self._token, httponly=True, samesite="Strict", path="/")
            return answer
        known = request.cookies.get(_COOKIE)
        if known is not None and _equal(known, self._token):
            return None
        return _plain(401, "open the address that `rewardflow watch` printed: it holds the token")

    # -- pages --

    async def _all_runs(self, request: web.BaseRequest) -> web.Response:
        runs = await asyncio.to_thread(find_runs, self._folder)
        rows = [await self._row(run) for run in runs]
        title = self._folder.resolve().name or str(self._folder)
        page = await asyncio.to_thread(runs_page, title, rows, Live(every_s=_EVERY_S))
        return _page(request, page)

    async def _row(self, run: FoundRun) -> RunRow:
        def make() -> RunRow:
            try:
                return row_of(run.key, read_run(run.path))
            except (InvalidInput, OSError) as error:
                return RunRow(run.key, problem=str(error))

        return await self._rows.get(run.key, [run.path], make)

    async def _run(self, request: web.BaseRequest) -> web.Response:
        found = await self._find(request.query.get("name", ""))
        search = f"rollouts?name={urllib.parse.quote(found.key, safe='')}" if self._shows_rollouts else None
        live = Live(every_s=_EVERY_S, home="./", search=search)

        def make() -> str:
            data = read_run(found.path)
            hidden = RolloutSample(rollouts=(), origin="Left out of this page.")
            return run_page(data, sample_rollouts(data) if self._shows_rollouts else hidden, live=live)

        return _page(request, await self._pages.get(f"run {found.key}", [found.path], make))

    async def _compare(self, request: web.BaseRequest) -> web.Response:
        one, other = [await self._find(request.query.get(name, "")) for name in ("one", "other")]
        live = Live(every_s=_EVERY_S, home="./")

        def make() -> str:
            return comparison_page(read_run(one.path), read_run(other.path), live=live)

        made = await self._pages.get(f"compare {one.key}\0{other.key}", [one.path, other.path], make)
        return _page(request, made)

    async def _rollouts(self, request: web.BaseRequest) -> web.Response:
        found = await self._find(request.query.get("name", ""))
        text = request.query.get("text", "")
        if not self._shows_rollouts or not text or len(text) > _MAX_TEXT:
            raise InvalidInput(f"a search needs a text of 1 to {_MAX_TEXT} characters, and rollouts to be shown")
        sample = await asyncio.to_thread(lambda: find_rollouts(read_run(found.path), text))
        body = {"rollouts": [dataclasses.asdict(one) for one in sample.rollouts], "origin": sample.origin}
        return web.Response(text=str(json_for_script(body)), content_type="application/json", headers=_HEADERS)

    async def _find(self, key: str) -> FoundRun:
        runs = await asyncio.to_thread(find_runs, self._folder)
        for run in runs:
            if run.key == key:
                return run
        raise InvalidInput(f"there is no run {key[:200]!r} in this folder")


def _page(request: web.BaseRequest, page: str) -> web.Response:
    """Answers with the page, or with 304 if the browser has it."""
    body = page.encode()
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {**_HEADERS, "ETag": tag}
    if request.headers.get("If-None-Match") == tag:
        return web.Response(status=304, headers=headers)
    answer = web.Response(body=body, content_type="text/html", charset="utf-8", headers=headers)
    answer.enable_compression()
    return answer


def _plain(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text + "\n", headers=_HEADERS)


def _equal(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())
