"""What goes out, and in which order: messages to a line that holds them back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from killable_host import KillableHost
from rollouts import rollout

from rewardflow import clock
from rewardflow.reward.agent import RewardAgent
from rewardflow.shared_agent.connection import Connection
from rewardflow.shared_agent.messages import Cancel, Op, ScoreRequest, Seal
from rewardflow.shared_agent.sender import Sender
from rewardflow.shared_agent.waiting_rollouts import NO_TICKET, WaitingRollout, WaitingRollouts


async def judge(solution_str: str) -> float:
    return 1.0


class Held(KillableHost):
    """Notes what is posted; every message takes a second."""

    def __init__(self) -> None:
        super().__init__(lambda: RewardAgent(judge, serves_runs=True))
        self.posted: list[tuple[float, list[str]]] = []
        self.began_s = 0.0

    async def post(self, secret: str, ops: Sequence[Op]) -> bool:
        shown = [f"{len(op.rollouts)} rollouts" if isinstance(op, ScoreRequest) else type(op).__name__ for op in ops]
        self.posted.append((round(asyncio.get_running_loop().time() - self.began_s, 1), shown))
        await asyncio.sleep(1.0)
        return await super().post(secret, ops)


def sent(*, rollouts: int, given_up: int = 0, rest: Sequence[Op] = (), later: int = 0) -> list[tuple[float, list[str]]]:
    """When each message leaves and what it holds: rollouts, what is said of them, and more rollouts."""

    async def main() -> list[tuple[float, list[str]]]:
        async with Held() as line, asyncio.TaskGroup() as tasks:
            connection = Connection(line, run="run", share=1.0, records=False, give_up_s=10.0)
            await connection.open()
            waiting_rollouts = WaitingRollouts(None)
            sender = Sender(connection, waiting_rollouts, tasks, sends_tokens=False)
            line.began_s = asyncio.get_running_loop().time()

            def questions(count: int, name: str) -> list[WaitingRollout]:
                return [waiting_rollouts.add(rollout("a", step=i, data_source=name), NO_TICKET) for i in range(count)]

            first = questions(rollouts, "first")
            sender.put(first)
            sender.put(rest)
            sender.put(questions(later, "later"))
            for question in first[:given_up]:
                waiting_rollouts.take_out(question.serial)
            running = tasks.create_task(sender.run())
            await asyncio.sleep(60)
            running.cancel()
            return line.posted

    return clock.run(main())


def test_rollouts_go_a_thousand_at_a_time_and_eight_messages_at_once() -> None:
    told = sent(rollouts=1024 * 9 + 5)
    assert [shown for _, shown in told] == [["1024 rollouts"]] * 9 + [["5 rollouts"]]
    assert [at_s for at_s, _ in told] == [0.0] * 8 + [1.0] * 2


def test_what_is_said_of_rollouts_waits_for_them_and_lets_nothing_pass() -> None:
    told = sent(rollouts=3, rest=[Seal(1), Cancel([1])], later=2)
    assert told == [(0.0, ["3 rollouts"]), (1.0, ["Seal", "Cancel"]), (2.0, ["2 rollouts"])]


def test_what_is_given_up_before_it_leaves_is_not_sent() -> None:
    assert sent(rollouts=3, given_up=2) == [(0.0, ["1 rollouts"])]
    assert sent(rollouts=2, given_up=2, rest=[Seal(1)]) == [(0.0, ["Seal"])]
