"""A service opens its agent again after a halt, and the next client learns nothing of the halt."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import rewardflow as rf
from rewardflow.shared_agent.messages import Halt, Hello, Post, ScoreRequest, Take, pack_rollout
from rewardflow.shared_agent.service import Service
from rewardflow.shared_agent.spec import AgentSpec


@pytest.fixture
def spec(tmp_path: Path) -> AgentSpec:
    (tmp_path / "judge.py").write_text("async def judge(solution_str):\n    return 1.0\n")
    return AgentSpec.of(f"{tmp_path}/judge.py:judge", journal=str(tmp_path / "run.db"))


def request(number: int) -> ScoreRequest:
    return ScoreRequest([(number, pack_rollout(rf.Rollout(group_id=str(number), response="4"), with_tokens=False))])


def remove_journal(folder: Path) -> None:
    for name in ("run.db", "run.db-wal", "run.db-shm"):
        (folder / name).unlink(missing_ok=True)


async def halt_of(service: Service, secret: str) -> Halt:
    confirmed = 0
    while True:
        delivery = await service.answer(Take(secret, confirmed))
        if delivery.halt is not None:
            return delivery.halt
        confirmed = delivery.number


def test_after_a_journal_that_could_not_be_written_the_next_hello_opens_a_new_agent(
    spec: AgentSpec, tmp_path: Path
) -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            await halt_and_open_again(Service(spec.build, tasks.create_task))

    async def halt_and_open_again(service: Service) -> None:
        first = await service.answer(Hello("first", "run"))
        await service.answer(Post("first", [request(1)]))
        await service.answer(Take("first", 0))
        remove_journal(tmp_path)
        await service.answer(Post("first", [request(2)]))
        assert (await halt_of(service, "first")).error == "JournalWriteFailed"
        second = await service.answer(Hello("second", "run"))
        assert second.incarnation != first.incarnation
        await service.close()

    asyncio.run(main())
