"""A client's end of the transport, against a host that answers what it is told to."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from rewardflow import clock
from rewardflow.errors import AgentClosed, SharedAgentGone
from rewardflow.shared_agent.connection import Connection, ConnectionLost
from rewardflow.shared_agent.messages import Bye, Delivery, Message, Post, Seal, Take, UnknownClient, Welcome

WELCOME = Welcome(incarnation="1", name="judge", needs_groups=False, may_change_verdicts=False, incomplete_after_s=None)


class Scripted:
    """Answers in order, raises what is an exception, and repeats the last; notes what it was asked, and when."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[float, Any]] = []

    async def ask(self, message: Message[Any]) -> Any:
        match message:
            case Post():
                return self._answer(message.ops)
            case Take():
                return self._answer(message.confirmed)
            case Bye():
                return await asyncio.sleep(1000)
            case _:
                return self._answer(type(message).__name__)

    def problem_with(self, value: object) -> str | None:
        return None

    async def aclose(self) -> None:
        pass

    def _answer(self, question: Any) -> Any:
        self.asked.append((round(asyncio.get_running_loop().time(), 6), question))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def connection_to(transport: Scripted, *, give_up_s: float = 600.0) -> Connection:
    return Connection(transport, run="run", share=1.0, records=False, give_up_s=give_up_s)


def test_a_host_that_does_not_answer_is_asked_less_and_less_often_until_the_time_is_up() -> None:
    transport = Scripted(ConnectionLost("away"))

    async def main() -> float:
        began_s = asyncio.get_running_loop().time()
        connection = connection_to(transport, give_up_s=10.0)
        with pytest.raises(SharedAgentGone, match="must answer within 10 s, it did not: away"):
            await connection.open()
        with pytest.raises(AgentClosed, match="the client is not open"):
            _ = connection.welcome
        return began_s

    began_s = clock.run(main())
    at_s = [when_s - began_s for when_s, _ in transport.asked]
    waits_s = [later - earlier for earlier, later in pairwise(at_s)]
    assert waits_s == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0])


def test_a_message_is_sent_until_it_arrives_and_never_in_a_later_era() -> None:
    ops = [Seal(1)]

    async def main(transport: Scripted, epoch: int) -> int:
        await connection_to(transport).post(ops, epoch=epoch)
        return len(transport.asked)

    assert (
        clock.run(main(Scripted(ConnectionLost("lost"), UnknownClient(), ConnectionLost("lost"), None), epoch=0)) == 4
    )
    assert clock.run(main(Scripted(SharedAgentGone("stopped")), epoch=0)) == 1
    assert clock.run(main(Scripted(None), epoch=-1)) == 0


def test_a_delivery_is_confirmed_by_the_next_question_and_a_new_host_is_asked_from_the_beginning() -> None:
    transport = Scripted(WELCOME, Delivery(7, []), ConnectionLost("away"), WELCOME, UnknownClient())

    async def main() -> list[Any]:
        connection = connection_to(transport)
        await connection.open()
        assert await connection.take() == Delivery(7, [])
        assert await connection.take() is None
        async with connection.renewed():
            assert connection.num_reconnects == 1
        assert await connection.take() is None
        return [question for _, question in transport.asked]

    assert clock.run(main()) == ["Hello", 0, 7, "Hello", 0]


def test_a_host_that_answers_nothing_but_hello_is_asked_less_and_less_often() -> None:
    async def main() -> list[float]:
        connection = connection_to(Scripted(WELCOME, *[ConnectionLost("broken"), WELCOME] * 6))
        await connection.open()
        waits_s = []
        for _ in range(6):
            assert await connection.take() is None
            began_s = asyncio.get_running_loop().time()
            async with connection.renewed():
                waits_s.append(asyncio.get_running_loop().time() - began_s)
        return waits_s

    waits_s = clock.run(main())
    assert waits_s[0] == 0
    assert waits_s[1:] == sorted(waits_s[1:])
    assert waits_s[-1] > 0.5


def test_nothing_is_sent_before_a_new_host_knows_what_is_wanted() -> None:
    async def main() -> None:
        connection = connection_to(Scripted(WELCOME))
        await connection.open()
        async with asyncio.TaskGroup() as tasks:
            async with connection.renewed():
                up = tasks.create_task(connection.wait_until_up())
                await asyncio.sleep(10)
                assert not up.done()
            await up

    clock.run(main())


def test_a_goodbye_that_nobody_answers_takes_five_seconds() -> None:
    async def main() -> float:
        began_s = asyncio.get_running_loop().time()
        assert await connection_to(Scripted(WELCOME)).bye() is None
        return asyncio.get_running_loop().time() - began_s

    assert clock.run(main()) == pytest.approx(5.0)
