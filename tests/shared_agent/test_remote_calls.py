"""What goes out, and in which order: jobs by their numbers, to a host that holds messages back."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from killable_host import KillableHost

import rewardflow as rf
from rewardflow import clock
from rewardflow.reward.agent import RewardAgent
from rewardflow.reward.groups.job import Job
from rewardflow.reward.groups.pending_group import PendingGroup
from rewardflow.reward.ticket import Ticket
from rewardflow.shared_agent.connection import Connection
from rewardflow.shared_agent.messages import (
    Cancel,
    Message,
    Op,
    Post,
    ScoreRequest,
    StillWanted,
    pack_reward,
    unpack_rollout,
)
from rewardflow.shared_agent.remote_calls import RemoteCalls
from rewardflow.types import Reward


async def judge(solution_str: str) -> float:
    return 1.0


class Held(KillableHost):
    """Notes what is posted, and when; every message takes a second and gets no further."""

    def __init__(self) -> None:
        super().__init__(lambda: RewardAgent(judge, serves_runs=True))
        self.posted: list[tuple[float, Sequence[Op]]] = []
        self.began_s = 0.0

    async def ask(self, message: Message[Any]) -> Any:
        if not isinstance(message, Post):
            return await super().ask(message)
        self.posted.append((round(asyncio.get_running_loop().time() - self.began_s, 1), message.ops))
        await asyncio.sleep(1.0)
        return None

    def shown(self) -> list[tuple[float, list[str]]]:
        return [(at_s, [shown(op) for op in ops]) for at_s, ops in self.posted]


def shown(op: Op) -> str:
    return f"{len(op.rollouts)} rollouts" if isinstance(op, ScoreRequest) else type(op).__name__


class Caller:
    """Adds jobs as an assembly does, of rollouts that belong to no ticket of the host."""

    def __init__(self, calls: RemoteCalls, *, group_size: int = 1) -> None:
        self._ticket = Ticket(None, asyncio.get_running_loop(), is_sealed=False)  # type: ignore[arg-type]
        self._calls = calls
        self._group_size = group_size

    def add(self, names: Sequence[str]) -> Iterator[Job]:
        for name in names:
            one = rf.Rollout(group_id=name, response=name, group_size=self._group_size)
            group = PendingGroup(one, 0, self._ticket, (False,), 0.0)
            group.put(one)
            job = Job(None, (one,), group, 0, contextvars.copy_context(), lambda *_: None)  # type: ignore[arg-type]
            self._calls.add(job)
            yield job


def sent(*, rollouts: int, given_up: int = 0, cancelled: int = 0, later: int = 0) -> list[tuple[float, list[str]]]:
    """When each message leaves and what it holds: rollouts, what is said of them, and more rollouts."""

    async def main() -> list[tuple[float, list[str]]]:
        async with Held() as line, asyncio.TaskGroup() as tasks:
            connection = Connection(line, run="run", share=1.0, records=False, give_up_s=10.0)
            await connection.open()
            calls = RemoteCalls(connection, tasks)
            caller = Caller(calls)
            line.began_s = asyncio.get_running_loop().time()
            first = list(caller.add([f"first {i}" for i in range(rollouts)]))
            for job in first[:given_up]:
                job.fail("cancelled", "", 0.0)
            calls.prune()
            running = tasks.create_task(calls.run())
            await asyncio.sleep(0)
            for job in first[given_up : given_up + cancelled]:
                job.fail("cancelled", "", 0.0)
            calls.prune()
            list(caller.add([f"later {i}" for i in range(later)]))
            await asyncio.sleep(60)
            running.cancel()
            return line.shown()

    return clock.run(main())


def test_rollouts_go_a_thousand_at_a_time_and_eight_messages_at_once() -> None:
    told = sent(rollouts=1024 * 9 + 5)
    assert [shown for _, shown in told] == [["1024 rollouts"]] * 9 + [["5 rollouts"]]
    assert [at_s for at_s, _ in told] == [0.0] * 8 + [1.0] * 2


def test_what_is_said_of_rollouts_waits_for_them_and_lets_nothing_pass() -> None:
    told = sent(rollouts=3, cancelled=1, later=2)
    assert told == [(0.0, ["3 rollouts"]), (1.0, ["Cancel"]), (2.0, ["2 rollouts"])]


def test_what_is_given_up_before_it_leaves_is_not_sent() -> None:
    assert sent(rollouts=3, given_up=2) == [(0.0, ["1 rollouts"]), (1.0, ["Cancel"])]
    assert sent(rollouts=2, given_up=2) == [(0.0, ["Cancel"])]


steps = st.lists(st.sampled_from(["ask", "answer", "answer again", "cancel", "break"]), max_size=30)


@given(steps=steps, needs_groups=st.booleans())
def test_after_a_break_all_that_is_out_is_sent_by_its_number_and_kept_jobs_by_new_ones(
    steps: list[str], needs_groups: bool
) -> None:
    """Jobs are kept where verdicts depend on groups: of these groups of two, only one rollout is here."""

    async def main() -> None:
        async with Held() as line, asyncio.TaskGroup() as tasks:
            connection = Connection(line, run="run", share=1.0, records=False, give_up_s=10.0)
            await connection.open()
            calls = RemoteCalls(connection, tasks)
            caller = Caller(calls, group_size=2)
            running = tasks.create_task(calls.run())
            out: dict[int, Job] = {}
            kept: list[str] = []
            last = 0
            for number, step in enumerate([*steps, "break"]):
                match step:
                    case "ask":
                        (job,) = caller.add([str(number)])
                        last += 1
                        out[last] = job
                    case "answer" | "answer again" if out:
                        serial, job = next(iter(out.items()))
                        del out[serial]
                        for _ in range(2 if step == "answer again" else 1):
                            calls.settle([(serial, pack_reward(Reward(value=1.0)), 0.0)], needs_groups=needs_groups)
                        assert job.is_done
                        kept += [job.rollouts[0].group_id] if needs_groups else []
                    case "cancel" if out:
                        serial, job = out.popitem()
                        job.fail("cancelled", "", 0.0)
                        calls.withdraw(job)
                        calls.withdraw(job)
                    case "break":
                        await asyncio.sleep(100)
                        line.posted.clear()
                        calls.send_again()
                        await asyncio.sleep(100)
                        ops = [op for _, ops in line.posted for op in ops]
                        assert ops[0] == StillWanted(list(out), last)
                        again = {s: unpack_rollout(one) for op in ops[1:] for s, one in op.rollouts}
                        wanted = {serial: job.rollouts[0].group_id for serial, job in out.items()}
                        renewed = dict(enumerate(kept, start=last + 1))
                        assert {serial: one.group_id for serial, one in again.items()} == wanted | renewed
                        last += len(kept)
                assert len(calls) == len(out)
            running.cancel()

    clock.run(main())


def test_of_jobs_that_are_kept_for_their_groups_the_latest_are() -> None:
    async def main() -> list[str]:
        async with Held() as line, asyncio.TaskGroup() as tasks:
            connection = Connection(line, run="run", share=1.0, records=False, give_up_s=10.0)
            await connection.open()
            calls = RemoteCalls(connection, tasks)
            list(Caller(calls, group_size=2).add([str(i) for i in range(8193)]))
            calls.settle([(i + 1, pack_reward(Reward(value=1.0)), 0.0) for i in range(8193)], needs_groups=True)
            calls.send_again()
            running = tasks.create_task(calls.run())
            await asyncio.sleep(60)
            running.cancel()
            ops = [op for _, ops in line.posted for op in ops if isinstance(op, ScoreRequest)]
            return [unpack_rollout(packed).group_id for op in ops for _, packed in op.rollouts]

    names = clock.run(main())
    assert len(names) == 8192
    assert (names[0], names[-1]) == ("1", "8192")


def test_a_stopped_client_sends_nothing_more() -> None:
    async def main() -> None:
        async with Held() as line, asyncio.TaskGroup() as tasks:
            connection = Connection(line, run="run", share=1.0, records=False, give_up_s=10.0)
            await connection.open()
            calls = RemoteCalls(connection, tasks)
            running = tasks.create_task(calls.run())
            (job,) = Caller(calls).add(["one"])
            await asyncio.sleep(10)
            calls.stop()
            job.fail("cancelled", "", 0.0)
            calls.prune()
            await asyncio.sleep(10)
            running.cancel()
            assert len(calls) == 0
            assert not any(isinstance(op, Cancel) for _, ops in line.posted for op in ops)

    clock.run(main())
