"""The shared agent as a named, detached Ray actor, and the transport to it.

Always true: a namespace has one actor of a name, whichever process asks for it first. Ray restarts it on any node with
room, without limit, and it opens its journal again. It ends only by `stop` or, with `ends_with_clients`, when the
processes of all its clients are gone; either way it closes its journal. Messages use Ray's own transport inside the
cluster, which trusts every process: a process that can reach the cluster can run code there, with or without this
actor. Ray is imported when a client connects.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import sys
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from os import PathLike
from typing import Any, TypeVar, cast

from rewardflow.errors import AgentClosed, ClusterError, InvalidInput, JournalLocked, RewardflowError, SharedAgentGone
from rewardflow.observe.events import EventSink
from rewardflow.reward.blocking import LoopThread
from rewardflow.shared_agent.client import SharedAgent
from rewardflow.shared_agent.connection import ConnectionLost
from rewardflow.shared_agent.messages import AskStatistics, Bye, Hello, HostStatistics, Message, pickle_problem
from rewardflow.shared_agent.service import Service
from rewardflow.shared_agent.spec import AgentSpec

logger = logging.getLogger(__name__)

T = TypeVar("T")

NAME = "default"
NAMESPACE = "rewardflow"
_CALLS_AT_ONCE = 10_000  # one long poll for each client
_SWITCH_S = 0.0005  # Ray's threads wait this long for a busy loop at every step of a message; Python's 5 ms are slow
_START_S = 120.0
_CLOSE_S = 30.0
_FIRST_CLIENT_S = 600.0  # as long as a client looks for its agent before it gives up


class AgentActor:
    """Runs in the actor's process: a service, and the check whether its clients are alive."""

    def __init__(self, spec: AgentSpec, env: Mapping[str, str], ends_with_clients: bool = False) -> None:
        import ray

        os.environ.update(env)  # not through Ray's runtime_env, which Ray writes into its logs
        logging.basicConfig(level=logging.INFO)
        sys.setswitchinterval(_SWITCH_S)
        self._spec = spec
        self._thread = LoopThread().__enter__()  # the agent's loop; Ray's own loop must stay free for messages
        node = ray.get_runtime_context().get_node_id()
        self._service = Service(spec.build, lambda serve: asyncio.wrap_future(self._thread.start(serve)), node=node)
        self._liveness = ProcessLiveness(_FIRST_CLIENT_S)
        self._watch = LoopThread().__enter__()
        if ends_with_clients:
            self._watch.start(self._end_with_clients())

    async def answer(
        self, message: Message[T], spec: AgentSpec | None = None, presence: Sequence[Awaitable[object]] = ()
    ) -> T:
        """Answers a client that describes the agent as this one does, if it describes it.

        `presence` holds the client's pending answer of `stay`; in a list, so that Ray does not wait for it here.
        """
        if spec is not None and (difference := self._spec.difference(spec)) is not None:
            raise InvalidInput(
                "all who share an agent must describe it alike; this one runs with other settings (its own and those "
                f"asked for): {difference}"
            )
        answer = await self._on_agent_loop(self._service.answer(message))
        for one in presence:
            self._watch.start(self._liveness.track(_until_owner_is_gone(one)))
        return answer

    async def stay(self) -> None:
        """Never answers. The calling process owns the answer, so waiting for it ends when that process is gone."""
        await asyncio.Event().wait()

    async def could_not_open(self) -> bool:
        return self._service.could_not_open

    async def close(self) -> None:
        await self._on_agent_loop(self._service.close())

    async def _on_agent_loop(self, answer: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(self._thread.start(answer))

    async def _end_with_clients(self) -> None:
        import ray

        await self._liveness.wait_until_all_gone()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self.close()
        finally:
            ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


async def _until_owner_is_gone(answer: Awaitable[object]) -> None:
    from ray.exceptions import RayError

    with contextlib.suppress(RayError):
        await answer


class ProcessLiveness:
    """Tracks the processes that an agent with `ends_with_clients` serves. It does not import Ray, and needs one loop.

    Always true: `wait_until_all_gone` returns when the last tracked process is gone, and not before; if none comes at
    all, it returns after `first_client_s`, because a restarted agent may have outlived all its clients.
    """

    def __init__(self, first_client_s: float) -> None:
        self._first_client_s = first_client_s
        self._num_alive = 0
        self._has_come = asyncio.Event()
        self._all_gone = asyncio.Event()

    async def track(self, gone: Awaitable[object]) -> None:
        """Counts a process as alive until `gone` ends, by a result or an error."""
        self._num_alive += 1
        self._has_come.set()
        try:
            await gone
        finally:
            self._num_alive -= 1
            if self._num_alive == 0:
                self._all_gone.set()

    async def wait_until_all_gone(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._first_client_s):
                await self._has_come.wait()
        if self._has_come.is_set():
            await self._all_gone.wait()


class RayTransport:
    """The way in over Ray. `Hello` finds or starts the actor, also after a restart."""

    def __init__(
        self, spec: AgentSpec | None, *, name: str, namespace: str, make: Mapping[str, Any] | None = None
    ) -> None:
        self._spec = spec
        self._name = name
        self._namespace = namespace
        self._make = make  # options to start the actor with if it does not exist; used only before the first welcome
        self._was_welcome = False
        self._actor: Any = None
        self._presence: list[Any] = []

    async def ask(self, message: Message[T]) -> T:
        if not isinstance(message, Hello):
            return await self._call(self._actor.answer.remote(message))
        if self._spec is not None and not self._was_welcome:
            self._actor = await asyncio.to_thread(self._find_or_make, self._spec)
        else:
            self._actor = await asyncio.to_thread(_find, self._name, self._namespace)
        if self._make is not None and self._make.get("ends_with_clients"):
            self._presence = [self._actor.stay.remote()]
        try:
            welcome: T = await self._call(self._actor.answer.remote(message, self._spec, self._presence))
        except RewardflowError:
            await self._kill_if_never_opened()
            raise
        self._was_welcome = True
        return welcome

    async def _kill_if_never_opened(self) -> None:
        """Ends an actor whose agent could not be opened, so that the name is free for one that can."""
        import ray

        with contextlib.suppress(ConnectionLost):
            if await self._call(self._actor.could_not_open.remote()):
                ray.kill(self._actor)

    def problem_with(self, value: object) -> str | None:
        return pickle_problem(value)

    async def aclose(self) -> None:
        """Does nothing: Ray's connections belong to the process."""

    def _find_or_make(self, spec: AgentSpec) -> Any:
        return _make(spec, name=self._name, namespace=self._namespace, **(self._make or {}))

    async def _call(self, answer: Awaitable[T]) -> T:
        """Raises the host's own exceptions as they are, and errors of the transport as `ConnectionLost`."""
        from ray.exceptions import RayError, RayTaskError

        try:
            return await answer
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, AgentClosed | JournalLocked):  # it is closing, or its predecessor holds the journal
                raise ConnectionLost(str(cause)) from cause
            raise cause from None
        except RayError as error:
            raise ConnectionLost(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") from error


def connect(
    spec: AgentSpec | None = None,
    *,
    run: str,
    name: str = NAME,
    namespace: str = NAMESPACE,
    share: float = 1.0,
    env: Mapping[str, str] | None = None,
    resources: Mapping[str, float] | None = None,
    sends_tokens: bool = False,
    give_up_s: float = 600.0,
    run_dir: str | PathLike[str] | None = None,
    sink: EventSink | None = None,
    ends_with_clients: bool = False,
) -> SharedAgent:
    """Returns a client of the agent of this name, for use with `async with`; initialise Ray before that.

    With a spec the client starts the agent if it does not exist, and is refused if the agent runs with other settings.
    `run` names the training run, which may have many clients; its `share` counts against those of other runs that have
    work. `run_dir`: where this client records the run's events, as a `RewardAgent` does; one client of a run does that,
    or one client gives a `sink` for the events. `ends_with_clients`: the agent closes, as by `stop`, when all processes
    that connected with this option are gone.
    """
    make = {"env": env, "resources": resources, "ends_with_clients": ends_with_clients}
    transport = RayTransport(spec, name=name, namespace=namespace, make=make)
    return SharedAgent(
        transport, run=run, share=share, sends_tokens=sends_tokens, give_up_s=give_up_s, run_dir=run_dir, sink=sink
    )


def start(
    spec: AgentSpec,
    *,
    name: str = NAME,
    namespace: str = NAMESPACE,
    env: Mapping[str, str] | None = None,
    resources: Mapping[str, float] | None = None,
) -> HostStatistics:
    """Starts the agent, or finds it if it runs with the same settings; blocks until it is open.

    `env` holds variables that its services need, such as keys, and is set in the running process; `resources` say on
    which nodes it may run.
    """
    import ray

    was_there = _is_there(name, namespace)
    actor = _make(spec, name=name, namespace=namespace, env=env, resources=resources)
    try:
        secret = secrets.token_hex(32)
        _get(actor.answer.remote(Hello(secret, "start"), spec), _START_S)
        _get(actor.answer.remote(Bye(secret, 0)), _START_S)
        return cast("HostStatistics", _get(actor.answer.remote(AskStatistics()), _START_S))
    except BaseException:
        if not was_there:
            ray.kill(actor)  # no other process has had an answer from it
        raise


def status(*, name: str = NAME, namespace: str = NAMESPACE) -> HostStatistics:
    return cast("HostStatistics", _get(_find(name, namespace).answer.remote(AskStatistics()), _START_S))


def stop(*, name: str = NAME, namespace: str = NAMESPACE) -> bool:
    """Ends the agent for good and closes its journal; False if there was none. Its clients raise `SharedAgentGone`."""
    import ray

    if not _is_there(name, namespace):
        return False
    actor = _find(name, namespace)
    try:
        _get(actor.close.remote(), _CLOSE_S)
    except (ray.exceptions.RayError, ClusterError) as error:
        logger.warning("the shared agent did not close properly: %s", error)
    ray.kill(actor, no_restart=True)
    return True


def _make(
    spec: AgentSpec,
    *,
    name: str,
    namespace: str,
    env: Mapping[str, str] | None,
    resources: Mapping[str, float] | None,
    ends_with_clients: bool = False,
) -> Any:
    import ray

    _check_ray()
    actor = ray.remote(AgentActor).options(
        name=name,
        namespace=namespace,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_concurrency=_CALLS_AT_ONCE,
        num_cpus=0,  # it mostly waits for services, and must not itself wait for a free CPU
        resources=dict(resources or {}),
    )
    return actor.remote(spec, dict(env or {}), ends_with_clients)


def _find(name: str, namespace: str) -> Any:
    import ray

    _check_ray()
    try:
        return ray.get_actor(name, namespace=namespace)
    except ValueError:
        raise SharedAgentGone(
            f"there is no shared agent {name!r} in namespace {namespace!r}: it was not started, or was stopped"
        ) from None


def _is_there(name: str, namespace: str) -> bool:
    try:
        _find(name, namespace)
    except SharedAgentGone:
        return False
    return True


def _check_ray() -> None:
    import ray

    if not ray.is_initialized():
        raise InvalidInput("the shared agent runs on Ray, which must be initialised first: ray.init(address='auto')")


def _get(answer: Any, timeout_s: float) -> Any:
    import ray

    try:
        return ray.get(answer, timeout=timeout_s)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.GetTimeoutError:
        raise ClusterError(
            f"the shared agent must answer within {timeout_s:g} s, it did not; it may be waiting for a node with the "
            "resources that were asked for"
        ) from None
