"""The HTTP server: routes, tokens, bounded bodies, errors, and the order in which everything ends.

Always true: a request is answered with a verdict, or with an error and its reason; a body above `max_body_mb` is
refused unread. No page of another site can use a server without tokens through a browser. Closing stops listening,
answers what waits, ends the calls in flight, and closes the journal, in this order.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Final, TypeVar

from aiohttp import web

from rewardflow.errors import AgentClosed, AgentHalted, InvalidInput, JournalLocked, RewardflowError
from rewardflow.observe.own_address import uses_own_address
from rewardflow.observe.redact import redact
from rewardflow.reward.agent import RewardAgent
from rewardflow.reward.event_loop import end_tasks
from rewardflow.reward.gc_tuning import fewer_collections
from rewardflow.reward.limits.ledger import LedgerStatistics
from rewardflow.reward.limits.run_ledgers import RunLedgers
from rewardflow.serve.chat_proxy import ChatProxy
from rewardflow.serve.http_json import RETRY_AFTER_S, error_answer, from_plain, json_answer, read_body
from rewardflow.serve.openapi import describe
from rewardflow.serve.own_protocol import MESSAGES, ScoreBody, hello_of_job, message_of, score, score_events
from rewardflow.serve.prometheus import CONTENT_TYPE, prometheus_text
from rewardflow.serve.repeatable_requests import RepeatableRequests
from rewardflow.serve.settings import Forbidden, Jobs, ServedJob, ServeSettings, Unauthorized
from rewardflow.serve.trainers import TrainerRequest, Trainers
from rewardflow.shared_agent.messages import AskStatistics, Hello, RunFull, UnknownClient
from rewardflow.shared_agent.service import Service

logger = logging.getLogger(__name__)

T = TypeVar("T")

RUN_HEADER: Final = "X-Rewardflow-Run"
STEP_HEADER: Final = "X-Rewardflow-Step"
_BACKLOG: Final = 4096  # thousands of clients may connect at once
_CLOSE_S: Final = 5.0
_USUALLY_WAITING: Final = 10_000  # rollouts, most of them in a queue and not in a call
_EVENTS: Final = "text/event-stream"
_MAX_STEP: Final = 2**63 - 1

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AgentServer:
    """Serves one agent from `async with` to its end, on the loop that entered it."""

    def __init__(self, build: Callable[[RunLedgers], RewardAgent], settings: ServeSettings) -> None:
        """`build` makes the agent, which must count the costs of runs in these ledgers."""
        self._build = build
        self._settings = settings
        self._jobs = Jobs(settings)
        caps = {name: job.max_cost_usd for name, job in settings.jobs.items() if job.max_cost_usd is not None}
        self._run_ledgers = RunLedgers(caps)
        self._proxy = None if settings.proxy is None else ChatProxy(settings.proxy, self._run_ledgers)
        self._scope = contextlib.AsyncExitStack()
        self._is_closing = asyncio.Event()
        self.port = settings.port

    @property
    def url(self) -> str:
        scheme = "http" if self._settings.tls_certificate is None else "https"
        host = f"[{self._settings.host}]" if ":" in self._settings.host else self._settings.host
        return f"{scheme}://{host}:{self.port}"

    async def __aenter__(self) -> AgentServer:
        async with contextlib.AsyncExitStack() as undo:
            undo.enter_context(fewer_collections(_USUALLY_WAITING))
            tasks = await asyncio.TaskGroup().__aenter__()
            undo.push_async_exit(functools.partial(_end, tasks))
            serving = functools.partial(Service, start=tasks.create_task, max_waiting_of=self._jobs.max_waiting_of)
            self._service = serving(lambda: self._build(self._run_ledgers))
            self._services = {"judge": self._service}
            self._requests = RepeatableRequests(self._service)
            self._trainers = Trainers(self._requests)
            if self._proxy is not None:
                self._services["proxy"] = serving(self._proxy.build)
                self._chat_requests = RepeatableRequests(self._services["proxy"], keeps_failures=False)
            runner = web.AppRunner(
                self._application(), access_log=None, handler_cancellation=False, shutdown_timeout=_CLOSE_S
            )
            await runner.setup()
            undo.push_async_callback(runner.cleanup)
            for service in self._services.values():
                undo.push_async_callback(service.close)  # answers what waits first
                await service.open_host()  # a mistake in the settings is found before anybody connects
            site = await self._listen(runner)
            undo.push_async_callback(site.stop)
            undo.callback(self._is_closing.set)
            self._scope = undo.pop_all()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._scope.__aexit__(exc_type, exc, traceback)

    async def _listen(self, runner: web.AppRunner) -> web.TCPSite:
        settings = self._settings
        site = web.TCPSite(runner, settings.host, settings.port, ssl_context=_tls(settings), backlog=_BACKLOG)
        try:
            await site.start()
        except OSError as error:
            where = f"{settings.host}:{settings.port} ({error.strerror or error})"
            raise InvalidInput(f"host and port must be free to listen on, got {where}") from error
        self.port = runner.addresses[0][1]
        return site

    def _application(self) -> web.Application:
        application = web.Application(
            client_max_size=int(self._settings.max_body_mb * 1e6), middlewares=[self._answered]
        )
        routes: Mapping[tuple[str, str], _Handler] = {
            ("GET", "/healthz"): self._healthz,
            ("GET", "/openapi.json"): self._openapi,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/v1/status"): self._status,
            ("GET", "/v1/spending"): self._spending,
            **{("POST", f"/v1/{verb}"): functools.partial(self._message, verb) for verb in MESSAGES},
            ("GET", "/v1/statistics"): self._statistics,
            ("POST", "/v1/score"): self._score,
            ("POST", "/openrlhf"): self._openrlhf,
            ("POST", "/slime"): self._slime,
            ("POST", "/miles"): self._slime,
            ("POST", "/verify"): self._verify,
            ("POST", "/seed_session"): self._seed_session,
            ("POST", "/aggregate_metrics"): self._aggregate_metrics,
            ("GET", "/reverify_mode"): self._reverify_mode,
            ("POST", "/v1/chat/completions"): self._chat_completions,
        }
        for (method, path), handler in routes.items():
            application.router.add_route(method, path, handler)
        return application

    # -- what every request passes -----------------------------------------------------------------------------------

    @web.middleware
    async def _answered(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Turns every error into an answer with its status and its reason."""
        try:
            if not self._jobs.needs_token and not uses_own_address(request.headers, self._settings.host):
                raise Forbidden("a server without tokens answers programs on this machine, no page of another site")
            return await handler(request)
        except Unauthorized as error:
            return error_answer(401, str(error), "unauthorized", {"WWW-Authenticate": "Bearer"})
        except Forbidden as error:
            return error_answer(403, str(error), "forbidden")
        except UnknownClient as error:
            return error_answer(410, str(error), "gone")
        except RunFull as error:
            return error_answer(429, str(error), "queue_full", {"Retry-After": str(RETRY_AFTER_S)})
        except InvalidInput as error:
            return error_answer(400, str(error), "invalid_request")
        except (AgentClosed, AgentHalted, JournalLocked) as error:
            return error_answer(503, str(error), "unavailable", {"Retry-After": str(RETRY_AFTER_S)})
        except web.HTTPException as error:
            return error_answer(error.status, error.text or error.reason, "http")
        except ConnectionResetError:  # the caller has gone in the middle of its request, and reads no answer
            return error_answer(400, "the connection was lost", "http")
        except RewardflowError as error:
            logger.exception("a request could not be answered")
            return error_answer(500, str(error), type(error).__name__)
        except Exception as error:  # a defect: the caller must learn at least what it is, and others go on
            logger.exception("a request could not be answered")
            return error_answer(500, redact(f"{type(error).__name__}: {error}")[:500], "defect")

    def _job(self, request: web.Request, run: str | None = None) -> ServedJob:
        named = run or request.headers.get(RUN_HEADER) or request.query.get("run")
        return self._jobs.of(request.headers.get("Authorization"), named)

    async def _body(self, request: web.Request, kind: type[T]) -> T:
        return from_plain(kind, read_body(await request.read()))

    # -- small handlers ----------------------------------------------------------------------------------------------

    async def _healthz(self, _: web.Request) -> web.Response:
        return json_answer({"status": "closing" if self._is_closing.is_set() else "ok"})

    async def _openapi(self, _: web.Request) -> web.Response:
        return json_answer(describe())

    async def _metrics(self, request: web.Request) -> web.Response:
        if not self._job(request).sees_all:
            raise Forbidden("the figures of all jobs need the server's own token; a job has /v1/spending")
        hosts = {name: await service.answer(AskStatistics()) for name, service in self._services.items()}
        waiting: Counter[str] = Counter()
        for service in self._services.values():
            waiting.update((await service.open_host()).num_waiting())
        text = prometheus_text(
            {name: host.agent for name, host in hosts.items()},
            self._run_ledgers.statistics(),
            waiting,
            up_s=hosts["judge"].up_s,
        )
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})

    async def _status(self, request: web.Request) -> web.Response:
        """Says what the agent is and does; the run's own queue, and the sums of all."""
        job = self._job(request)
        host = await self._service.answer(AskStatistics())
        opened = await self._service.open_host()
        welcome = opened.describe()
        return json_answer(
            {
                "name": welcome.name,
                "needs_groups": welcome.needs_groups,
                "run": job.run,
                "waiting": opened.num_waiting().get(job.run, 0),
                "calls_in_flight": host.agent.in_flight,
                "calls_waiting": host.agent.waiting,
                "up_s": host.up_s,
                "proxies": self._proxy is not None,
            }
        )

    async def _spending(self, request: web.Request) -> web.Response:
        """Says what the run has spent; whoever sees all also gets the other runs and the server's own cap."""
        job = self._job(request)
        runs = self._run_ledgers.statistics()
        own = runs.get(job.run) or self._run_ledgers.of(job.run).statistics()
        answer: dict[str, Any] = {"run": job.run, **_money(own)}
        if job.sees_all:
            answer["runs"] = {run: _money(money) for run, money in runs.items()}
            agents = {name: (await service.answer(AskStatistics())).agent for name, service in self._services.items()}
            answer["agents"] = {name: _money(agent.ledger) for name, agent in agents.items()}
        return json_answer(answer)

    # -- the own protocol --------------------------------------------------------------------------------------------

    async def _message(self, verb: str, request: web.Request) -> web.StreamResponse:
        """Answers a message of the Python client: the way in over HTTP."""
        self._jobs.of(request.headers.get("Authorization"), None)  # no body is read for a stranger
        message = message_of(verb, read_body(await request.read()))
        if isinstance(message, Hello):
            message = hello_of_job(message, self._job(request, message.run))
        return json_answer(await self._service.answer(message))

    async def _statistics(self, request: web.Request) -> web.StreamResponse:
        if not self._job(request).sees_all:
            raise Forbidden("the statistics of all jobs need the server's own token; a job has /v1/spending")
        return json_answer(await self._service.answer(AskStatistics()))

    async def _score(self, request: web.Request) -> web.StreamResponse:
        self._jobs.of(request.headers.get("Authorization"), None)  # no body is read for a stranger
        body = await self._body(request, ScoreBody)
        job = self._job(request, body.run)
        if _EVENTS in request.headers.get("Accept", ""):
            return await _stream(request, score_events(body, job, self._requests))
        return await score(body, job, self._requests)

    # -- what trainers speak -----------------------------------------------------------------------------------------

    def _asked(self, request: web.Request) -> TrainerRequest:
        return TrainerRequest(self._job(request), _step_of(request))

    async def _openrlhf(self, request: web.Request) -> web.StreamResponse:
        asked = self._asked(request)
        return await self._trainers.openrlhf(read_body(await request.read()), asked)

    async def _slime(self, request: web.Request) -> web.StreamResponse:
        asked = self._asked(request)
        return await self._trainers.slime(read_body(await request.read()), asked, request.query.get("key"))

    async def _verify(self, request: web.Request) -> web.StreamResponse:
        asked = self._asked(request)
        fails_as_row = request.query.get("failed") == "row"
        return await self._trainers.verify(read_body(await request.read()), asked, fails_as_row=fails_as_row)

    async def _seed_session(self, request: web.Request) -> web.Response:
        self._job(request)
        return json_answer({})

    async def _aggregate_metrics(self, request: web.Request) -> web.Response:
        self._job(request)
        return self._trainers.aggregate_metrics(read_body(await request.read()))

    async def _reverify_mode(self, request: web.Request) -> web.Response:
        self._job(request)
        return json_answer("stateless")

    async def _chat_completions(self, request: web.Request) -> web.StreamResponse:
        asked = self._asked(request)
        if self._proxy is None:
            return error_answer(404, "this server has no proxy: set serve.proxy.base_url", "not_found")
        body, key = read_body(await request.read()), request.headers.get("Idempotency-Key")
        return await self._proxy.complete(body, asked, key, self._chat_requests)


def _step_of(request: web.Request) -> int | None:
    text = request.headers.get(STEP_HEADER) or request.query.get("step")
    if text is None:
        return None
    try:
        step = int(text)
    except ValueError:
        step = _MAX_STEP + 1
    if not -_MAX_STEP <= step <= _MAX_STEP:
        raise InvalidInput(f"{STEP_HEADER} must be a whole number of at most 64 bits, got {text!r:.100}")
    return step


def _money(money: LedgerStatistics) -> dict[str, float | None]:
    return {
        "spent_usd": money.spent_usd,
        "uncertain_usd": money.uncertain_usd,
        "reserved_usd": money.reserved_usd,
        "cap_usd": money.cap_usd,
    }


async def _end(
    tasks: asyncio.TaskGroup,
    exc_type: type[BaseException] | None,
    exc: BaseException | None,
    traceback: TracebackType | None,
) -> None:
    await end_tasks(tasks, exc)


async def _stream(request: web.Request, events: AsyncIterator[bytes]) -> web.StreamResponse:
    """Sends events as they come. An error before the first one is an answer of its own."""
    first = await anext(events)
    response = web.StreamResponse(headers={"Cache-Control": "no-store", "Content-Type": _EVENTS})
    with contextlib.suppress(ConnectionResetError):  # the caller has gone, and may ask again
        await response.prepare(request)
        await response.write(first)
        async for event in events:
            await response.write(event)
        await response.write_eof()
    return response


def _tls(settings: ServeSettings) -> ssl.SSLContext | None:
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(f"tls_certificate and tls_key must be readable PEM files, got {error}") from error
    return context
