"""Starts and reaches the one reward agent of a verl job, from every process of the job.

Always true: all processes of a job with the same configuration reach the same agent, so that one limiter, one journal
and one ledger serve all reward workers; the agent ends with the job, also where the job is killed and Ray lives on. An
agent that jobs share by name stays.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

import ray

from rewardflow.adapters.verl.sample_judge import SampleJudge
from rewardflow.adapters.verl.settings import VerlSettings, settings_of, spec_of
from rewardflow.adapters.verl.versions import check_version, installed_version
from rewardflow.errors import AgentHalted
from rewardflow.observe.events import EventSink
from rewardflow.observe.run_directory import RunDirectory
from rewardflow.reward.blocking import LoopThread
from rewardflow.shared_agent import ray_actor
from rewardflow.shared_agent.client import SharedAgent
from rewardflow.types import Reward, Rollout

T = TypeVar("T")


def make_run_directory(settings: VerlSettings) -> None:
    """Makes the run's directory, which holds the journal: in verl's own modes the first reward worker makes it."""
    if settings.run_dir is not None:
        RunDirectory.at(settings.run_dir, name=settings.run)


def agent_name(settings: VerlSettings) -> str:
    return settings.agent or f"rewardflow-{ray.get_runtime_context().get_job_id()}"


def client_of_job(settings: VerlSettings, sink: EventSink | None = None) -> SharedAgent:
    """Returns a client of the job's agent. The first client to connect makes the agent."""
    return ray_actor.connect(
        spec_of(settings),
        name=agent_name(settings),
        run=settings.run,
        sink=sink,
        ends_with_clients=settings.agent is None,
    )


@contextlib.contextmanager
def agent_for_job(settings: VerlSettings) -> Iterator[JobAgent]:
    """Runs the agent for as long as the job trains. All its files are complete when the block ends."""
    agent = JobAgent(settings)
    try:
        yield agent
    finally:
        agent.close()
        if settings.agent is None:
            ray_actor.stop(name=agent_name(settings))


def judge_for_job(config: Mapping[str, Any], tokenizer: Any) -> SampleJudge:
    """Connects this process to the job's agent, until the process ends. `config` is verl's, as plain data."""
    settings = settings_of(config)
    check_version(installed_version(), allow_untested=settings.allow_untested_verl)
    return SampleJudge(config, tokenizer, JobAgent(settings))


class JobAgent:
    """A process's connection to the job's agent, on an event loop in a thread of its own.

    verl makes a reward manager before its worker has a loop, and does not tell it when the job is over. There the end
    of the process ends the connection.
    """

    def __init__(self, settings: VerlSettings) -> None:
        make_run_directory(settings)
        self._thread = LoopThread().__enter__()
        self._client: HeldOpen[Any] = HeldOpen(self._thread, client_of_job(settings))

    @property
    def needs_groups(self) -> bool:
        """Whether the reward judges whole groups: then a verdict comes when all rollouts of its group are there."""
        return bool(self._client.value.needs_groups)

    async def score(self, rollout: Rollout) -> Reward:
        reward: Reward = await asyncio.wrap_future(self._thread.start(self._client.value.score(rollout)))
        return reward

    def close(self) -> None:
        with contextlib.suppress(AgentHalted):  # its callers have raised it
            self._client.close()
        self._thread.stop()


class HeldOpen(Generic[T]):
    """Holds an asynchronous context open on a thread's loop, in one task; `value` is what entering it returned."""

    def __init__(self, thread: LoopThread, context: AbstractAsyncContextManager[T]) -> None:
        self._thread = thread
        self._is_over = asyncio.Event()
        entered: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._task: concurrent.futures.Future[Any] = thread.start(self._hold(context, entered))
        concurrent.futures.wait((entered, self._task), return_when=concurrent.futures.FIRST_COMPLETED)
        if not entered.done():
            self._task.result()  # raises the reason
        self.value = entered.result()

    def close(self) -> None:
        """Leaves the context and waits until that is done. Raises what the context raised."""
        self._thread.call_soon(self._is_over.set)
        self._task.result()

    async def _hold(self, context: AbstractAsyncContextManager[T], entered: concurrent.futures.Future[T]) -> None:
        async with context as value:
            entered.set_result(value)
            await self._is_over.wait()
