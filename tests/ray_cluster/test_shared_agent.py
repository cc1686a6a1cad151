"""The shared agent on real Ray: processes that are killed, nodes that go away, jobs that share a service."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from ray_here import LOOPBACK

import rewardflow as rf
from rewardflow.errors import InvalidInput, SharedAgentGone
from rewardflow.shared_agent.ray_actor import connect, start, status, stop
from rewardflow.shared_agent.spec import AgentSpec

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


JUDGE = '''
import asyncio
import os
import pathlib

CALLS = pathlib.Path(__file__).with_name("calls.txt")


async def judge(solution_str, extra_info):
    """Notes each call in a file, in one write, and takes as long as it is told."""
    file = os.open(CALLS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{solution_str}\\n".encode())
    os.close(file)
    await asyncio.sleep(extra_info.get("delay_s", 0.0))
    return {"score": float(solution_str), "key_is_there": "THE_KEY" in os.environ}


class Centred:
    async def compute_score(self, solution_str):
        return float(solution_str)

    def post_process_scores(self, scores):
        return [score - sum(scores) / len(scores) for score in scores]


class Ranking:
    async def score_group(self, rollouts):
        return [float(rollout.index) for rollout in rollouts]
'''

WORKER = """
import asyncio, logging, sys
import ray
import rewardflow as rf
from rewardflow.shared_agent.ray_actor import connect

address, run, first, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, _node_ip_address="127.0.0.2")


async def main():
    async with connect(run=run, name="judge") as agent:
        print("ready", flush=True)
        delay = {"delay_s": 0.5}
        rollouts = [rf.Rollout(group_id=f"{first}-{i}", response=str(i), extra_info=delay) for i in range(count)]
        rewards = await asyncio.gather(*(agent.score(rollout) for rollout in rollouts))
        assert [reward.value for reward in rewards] == [float(i) for i in range(count)]
        print("done", flush=True)


asyncio.run(main())
"""


HOLDER = """
import asyncio, logging, sys
import ray
import rewardflow as rf
from rewardflow.shared_agent.ray_actor import connect

ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.ERROR, _node_ip_address="127.0.0.2")


async def main():
    async with connect(run="a", name="judge") as agent, asyncio.TaskGroup() as tasks:
        tasks.create_task(agent.score(rf.Rollout(group_id="g", index=1, group_size=3, response="1")))
        while not (await agent.host_statistics()).agent.verdicts.submitted:
            await asyncio.sleep(0.05)
        print("ready", flush=True)
        await asyncio.sleep(1000)  # it would have sent index 2 then


asyncio.run(main())
"""


JOB = """
import asyncio, logging, os, signal, sys
import ray
import rewardflow as rf
from rewardflow.shared_agent.ray_actor import connect
from rewardflow.shared_agent.spec import AgentSpec

address, reward, journal, end = sys.argv[1:]
ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, _node_ip_address="127.0.0.2")


@ray.remote(num_cpus=0)
class Worker:
    async def score(self, delay_s):
        spec = AgentSpec.of(reward, journal=journal)
        self.agent = await connect(spec, name="judge", run="a", ends_with_clients=True).__aenter__()
        rollout = rf.Rollout(group_id=str(delay_s), response="7", extra_info={"delay_s": delay_s})
        return (await self.agent.score(rollout)).value


workers = [Worker.remote() for _ in range(2)]
assert ray.get(workers[0].score.remote(0.0)) == 7.0
never = workers[1].score.remote(1000.0)
assert ray.get(workers[0].score.remote(0.1)) == 7.0
print("judged", flush=True)
if end == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def judge(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "judge.py").write_text(JUDGE, "utf-8")
    yield tmp_path
    stop(name="judge")


def spec_of(folder: Path, name: str = "judge", **options: Any) -> AgentSpec:
    return AgentSpec.of(f"{folder / 'judge.py'}:{name}", **options)


def rollouts(count: int, *, size: int = 4, delay_s: float = 0.0) -> list[rf.Rollout]:
    return [
        rf.Rollout(
            group_id=str(i // size),
            index=i % size,
            group_size=size,
            response=str(i),
            extra_info={"delay_s": delay_s},
            token_ids=(1, 2, 3),
        )
        for i in range(count)
    ]


def calls_in(folder: Path) -> Counter[str]:
    file = folder / "calls.txt"
    return Counter(file.read_text().split()) if file.exists() else Counter()


def check_exact(sent: list[rf.Rollout], groups: list[rf.ScoredGroup]) -> None:
    """Every rollout once, with its own verdict."""
    assert [rollout for group in groups for rollout in group.rollouts] == sent
    values = [reward.value for group in groups for reward in group.rewards]
    assert values == [float(rollout.response) for rollout in sent]


def until_gone(name: str, *, within_s: float) -> None:
    """Ray takes seconds to see that a process is gone."""
    deadline_s = time.monotonic() + within_s
    while any(actor["name"] == name for actor in ray.util.list_named_actors(all_namespaces=True)):
        assert time.monotonic() < deadline_s, f"{name} is still there after {within_s} s"
        time.sleep(0.2)


async def until_calls(folder: Path, count: int) -> None:
    while sum(calls_in(folder).values()) < count:  # noqa: ASYNC110 (the judge is in another process)
        await asyncio.sleep(0.01)


def test_groups_and_samples_come_back_and_keys_come_from_the_actors_own_environment(judge: Path) -> None:
    async def main() -> None:
        async with connect(spec_of(judge), name="judge", run="a", env={"THE_KEY": "secret-value"}) as agent:
            sent = rollouts(400)
            groups = await agent.submit(sent).all()
            check_exact(sent, groups)
            assert all(reward.extras["key_is_there"] for group in groups for reward in group.rewards)
            assert (await agent.score(rf.Rollout(group_id="lone", response="7"))).value == 7.0
            assert "secret-value" not in str(await agent.host_statistics())

    asyncio.run(main())


def test_no_file_of_the_cluster_holds_a_key_that_was_passed_on(cluster: Cluster, judge: Path) -> None:
    start(spec_of(judge), name="judge", env={"THE_KEY": "a-key-that-nobody-may-read"})
    stop(name="judge")
    logs = Path(cluster.head_node.get_session_dir_path()) / "logs"
    files = [path for path in logs.rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if b"a-key-that-nobody-may-read" in path.read_bytes()] == []


def test_a_run_beyond_its_bytes_waits_and_no_file_of_the_cluster_holds_the_secret_of_its_client(
    cluster: Cluster, judge: Path
) -> None:
    async def main() -> str:
        spec = spec_of(judge, max_waiting_mb=0.001)
        async with connect(spec, name="judge", run="a") as agent:
            tickets = []
            for number in range(6):
                delay = {"delay_s": 0.3}
                one = rf.Rollout(group_id=str(number), response=str(number), prompt="x" * 400, extra_info=delay)
                tickets.append(agent.submit(one))
                await asyncio.sleep(0.05)
            groups = [group for ticket in tickets for group in await ticket.all()]
            assert [group.rewards[0].value for group in groups] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
            return agent._connection._secret

    secret = asyncio.run(main()).encode()
    logs = Path(cluster.head_node.get_session_dir_path()) / "logs"
    assert [path for path in logs.rglob("*") if path.is_file() and secret in path.read_bytes()] == []


def test_a_killed_actor_comes_back_and_the_step_ends_without_loss_or_double_delivery(judge: Path) -> None:
    async def main() -> None:
        spec = spec_of(judge, max_concurrency=16, journal=judge / "run.db")
        async with connect(spec, name="judge", run="a") as agent:
            sent = rollouts(400, delay_s=0.05)
            ticket = agent.submit(sent)
            first = await ticket.take(20)
            before = await agent.host_statistics()
            os.kill(before.pid, signal.SIGKILL)
            lone = await agent.score(rf.Rollout(group_id="lone", response="1000"))
            rest = await ticket.all()
            check_exact(sent, sorted([*first, *rest], key=lambda group: int(group.group_id)))
            assert lone.value == 1000.0
            statistics = agent.statistics()
            assert (statistics.verdicts.scored, statistics.out) == (len(sent) + 1, 0)
            assert statistics.reconnects >= 1
            assert (await agent.host_statistics()).pid != before.pid

    asyncio.run(main())
    calls = calls_in(judge)
    assert len(calls) == 401
    assert sum(calls.values()) - len(calls) <= 16  # what was in flight; nothing that was paid for


def test_an_agent_whose_node_is_removed_in_mid_step_goes_on_at_another_node(cluster: Cluster, judge: Path) -> None:
    place = {"num_cpus": 4, "resources": {"rewards": 1}, "object_store_memory": 80 * 2**20}
    nodes = [cluster.add_node(node_ip_address=LOOPBACK, **place) for _ in range(2)]
    cluster.wait_for_nodes()

    async def main() -> tuple[str, str]:
        spec = spec_of(judge, max_concurrency=16, journal=judge / "run.db")
        async with connect(spec, name="judge", run="a", resources={"rewards": 1}) as agent:
            sent = rollouts(400, delay_s=0.05)
            ticket = agent.submit(sent)
            await until_calls(judge, 100)
            before = await agent.host_statistics()
            (lost,) = (node for node in nodes if node.node_id == before.node)
            await asyncio.to_thread(cluster.remove_node, lost, False)
            check_exact(sent, await ticket.all())
            return before.node, (await agent.host_statistics()).node

    before, after = asyncio.run(main())
    assert {before, after} == {node.node_id for node in nodes}
    calls = calls_in(judge)
    assert sum(calls.values()) - len(calls) <= 16


def test_processes_of_two_jobs_share_one_rate_and_a_killed_one_frees_its_share(cluster: Cluster, judge: Path) -> None:
    start(spec_of(judge, rpm=1200, max_concurrency=64), name="judge")
    script = judge / "worker.py"
    script.write_text(WORKER, "utf-8")
    workers = [
        subprocess.Popen(
            [sys.executable, str(script), cluster.address, f"job-{i % 2}", str(i), "20" if i else "100000"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(4)
    ]
    try:
        assert all(worker.stdout is not None and worker.stdout.readline() == "ready\n" for worker in workers)
        began_s, calls = time.monotonic(), sum(calls_in(judge).values())
        assert [worker.wait(timeout=300) for worker in workers[1:]] == [0, 0, 0]
        took_s = time.monotonic() - began_s
        assert sum(calls_in(judge).values()) - calls <= 20 * took_s * 1.1 + 21  # 20 a second, and a second's burst
        workers[0].kill()
        workers[0].wait()
        deadline_s = time.monotonic() + 120
        while status(name="judge").clients and time.monotonic() < deadline_s:
            time.sleep(0.5)
        left = status(name="judge")
        assert left.clients == ()
        assert (left.agent.waiting, left.agent.in_flight) == (0, 0)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


@pytest.mark.parametrize("end", ["over", "killed"])
def test_an_agent_that_is_there_for_one_job_ends_with_it_and_leaves_its_journal_in_order(
    cluster: Cluster, judge: Path, end: str
) -> None:
    script, journal = judge / "job.py", judge / "run.db"
    script.write_text(JOB, "utf-8")
    for _ in range(2):  # the second finds nothing in its way
        words = [sys.executable, str(script), cluster.address, f"{judge / 'judge.py'}:judge", str(journal), end]
        said = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=300)
        assert said.stdout == "judged\n"
        until_gone("judge", within_s=120)
        assert journal.exists()
        assert not journal.with_name("run.db-wal").exists()  # it was closed, not cut off
    assert calls_in(judge)["7"] <= 4  # what is in the journal was not asked again


def test_workers_in_different_processes_complete_each_others_groups(judge: Path) -> None:
    @ray.remote(num_cpus=0)
    class Worker:
        async def score(self, spec: AgentSpec, rollout: rf.Rollout) -> float | None:
            async with connect(spec, name="judge", run="a") as agent:
                return (await agent.score(rollout)).value

    workers = [Worker.remote() for _ in range(2)]
    spec = spec_of(judge, "Centred")
    pair = rollouts(2, size=2)
    answers = [worker.score.remote(spec, one) for worker, one in zip(workers, pair, strict=True)]
    assert ray.get(answers, timeout=300) == [-0.5, 0.5]


def test_a_group_that_lacks_what_a_killed_process_held_fails_for_the_others(cluster: Cluster, judge: Path) -> None:
    start(spec_of(judge, "Ranking", incomplete_after_s=5.0), name="judge")
    script = judge / "holder.py"
    script.write_text(HOLDER, "utf-8")
    holder = subprocess.Popen([sys.executable, str(script), cluster.address], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
    finally:
        holder.kill()
        holder.wait()

    async def main() -> rf.Reward:
        async with connect(run="a", name="judge") as agent:
            return await agent.score(rf.Rollout(group_id="g", index=0, group_size=3, response="0"))

    reward = asyncio.run(main())
    assert (reward.value, reward.kind) == (None, "cancelled")
    assert "judged as a whole and lacks index 2: nothing came for incomplete_after_s=5" in (reward.error or "")


def test_two_jobs_with_other_settings_for_one_agent_are_told_the_difference(judge: Path) -> None:
    start(spec_of(judge, rpm=600), name="judge")
    start(spec_of(judge, rpm=600), name="judge")
    with pytest.raises(InvalidInput, match=r"rpm \(600 and 300\)"):
        start(spec_of(judge, rpm=300), name="judge")

    async def main() -> None:
        async with connect(spec_of(judge, rpm=600, max_attempts=9), name="judge", run="b"):
            pass

    with pytest.raises(InvalidInput, match=r"max_attempts \(the default and 9\)"):
        asyncio.run(main())


def test_an_agent_that_cannot_be_opened_says_why_and_leaves_no_actor_behind(judge: Path) -> None:
    with pytest.raises(InvalidInput, match="has no 'nobody'"):
        start(spec_of(judge, "nobody"), name="judge")
    with pytest.raises(SharedAgentGone):
        status(name="judge")


def test_a_client_whose_agent_cannot_be_opened_leaves_the_name_free_for_one_that_can(judge: Path) -> None:
    async def ask(reward: str) -> float | None:
        async with connect(spec_of(judge, reward), name="judge", run="a") as agent:
            return (await agent.score(rf.Rollout(group_id="q", response="7"))).value

    with pytest.raises(InvalidInput, match="has no 'nobody'"):
        asyncio.run(ask("nobody"))
    assert asyncio.run(ask("judge")) == 7.0


def test_clients_of_an_agent_that_was_stopped_are_told_and_keep_what_they_have(judge: Path) -> None:
    async def main() -> None:
        async with connect(spec_of(judge), name="judge", run="a") as agent:
            ticket = agent.submit(rollouts(8, delay_s=100.0))
            await until_calls(judge, 8)
            await asyncio.to_thread(stop, name="judge")
            with pytest.raises(SharedAgentGone, match="stopped") as gone:
                await ticket.all()
            assert len(gone.value.groups) == 2

    asyncio.run(main())
    assert stop(name="judge") is False
