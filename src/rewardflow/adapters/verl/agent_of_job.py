"""The one agent of a verl job: how every process of the job names it, starts it and reaches it.

Always true: all processes of a job with the same configuration reach the same agent, so that there is one limiter, one
journal and one ledger, however many reward workers there are.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Iterator
from typing import Any

import ray

from rewardflow.adapters.verl.settings import VerlSettings, spec_of
from rewardflow.reward.blocking import LoopThread
from rewardflow.run_directory import RunDirectory
from rewardflow.shared_agent import ray_actor
from rewardflow.types import Reward, Rollout


def make_room(settings: VerlSettings) -> None:
    """The run's directory, where the journal is: in verl's own modes the first reward worker makes it."""
    if settings.run_dir is not None:
        RunDirectory.at(settings.run_dir, name=settings.run)


def agent_name(settings: VerlSettings) -> str:
    return settings.agent or f"rewardflow-{ray.get_runtime_context().get_job_id()}"


def tally_name() -> str:
    """Of the actor that counts verdicts in verl's own modes, if the job has one."""
    return f"rewardflow-tally-{ray.get_runtime_context().get_job_id()}"


@contextlib.contextmanager
def agent_for_job(settings: VerlSettings) -> Iterator[None]:
    """The agent, for as long as the job trains. One that jobs share by name stays when this job has gone."""
    make_room(settings)
    name = agent_name(settings)
    ray_actor.start(spec_of(settings), name=name)
    try:
        yield
    finally:
        if settings.agent is None:
            ray_actor.stop(name=name)


def needs_groups(settings: VerlSettings) -> bool:
    """Whether the job's agent judges whole groups: then a verdict comes when all rollouts of its group are there."""

    async def ask() -> bool:
        async with ray_actor.connect(spec_of(settings), name=agent_name(settings), run=settings.run) as agent:
            return agent.needs_groups

    with LoopThread() as thread:
        return thread.start(ask()).result()


class JobAgent:
    """The job's agent as one process sees it.

    It lives on an event loop of its own, held open by one coroutine there: verl makes a reward manager before its
    worker has a loop, and tells nobody when it is over. The process ends it.
    """

    def __init__(self, settings: VerlSettings) -> None:
        make_room(settings)
        self._thread = LoopThread().__enter__()
        agent = ray_actor.connect(spec_of(settings), name=agent_name(settings), run=settings.run)
        opened: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._held = self._thread.start(_hold_open(agent, opened))
        concurrent.futures.wait((opened, self._held), return_when=concurrent.futures.FIRST_COMPLETED)
        if not opened.done():
            self._held.result()  # raises why
        self._agent = opened.result()

    @property
    def needs_groups(self) -> bool:
        return bool(self._agent.needs_groups)

    async def score(self, rollout: Rollout) -> Reward:
        reward: Reward = await asyncio.wrap_future(self._thread.start(self._agent.score(rollout)))
        return reward


async def _hold_open(agent: Any, opened: concurrent.futures.Future[Any]) -> None:
    async with agent as entered:
        opened.set_result(entered)
        await asyncio.Event().wait()
