"""A run of a journal belongs to one process at a time; other runs may use the same file."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import rewardflow as rf
from rewardflow import clock
from rewardflow.errors import JournalError, JournalLocked
from rewardflow.reward.journal.journal_lock import lock_run

HOLDER = """
import asyncio, sys
import rewardflow as rf

async def main():
    async with rf.RewardAgent(lambda solution_str: 1.0, journal=sys.argv[1], run=sys.argv[2]):
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


def one(solution_str: str) -> float:
    return 1.0


def test_the_same_run_in_two_processes_is_refused_by_name_of_the_first_and_goes_on_when_that_is_dead(
    tmp_path: Path,
) -> None:
    path = tmp_path / "j.db"
    rollouts = [rf.Rollout(group_id="q", response="x")]
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), "mine"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        calls: list[str] = []

        def counted(solution_str: str) -> float:
            calls.append(solution_str)
            return 1.0

        name = rf"process {holder.pid} on {socket.gethostname()}, since 20\d\d-.*; wait until that ends"
        with pytest.raises(JournalLocked, match=rf"one process at a time, got run 'mine' of .*j\.db, .* by {name}"):
            rf.score(rollouts, counted, journal=path, run="mine")
        assert calls == []
        assert rf.score(rollouts, one, journal=path, run="other")[0].value == 1.0
        holder.kill()
    assert rf.score(rollouts, one, journal=path, run="mine")[0].value == 1.0
    assert sorted(os.listdir(tmp_path)) == ["j.db"]


def test_two_agents_of_one_process_on_one_run_are_refused_and_a_closed_one_frees_it(tmp_path: Path) -> None:
    async def main() -> None:
        path, link = tmp_path / "j.db", tmp_path / "link.db"
        link.symlink_to(path)
        async with rf.RewardAgent(one, journal=path):
            for name in (path, link):
                with pytest.raises(JournalLocked, match=f"process {os.getpid()} "):
                    async with rf.RewardAgent(one, journal=name):
                        pass
            async with rf.RewardAgent(one, journal=path, run="other"):
                pass
        async with rf.RewardAgent(one, journal=path):
            pass

    clock.run(main())


def test_an_agent_of_many_runs_has_its_journal_alone(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    with (
        lock_run(path, "a"),
        lock_run(path, "b/\0ü"),
        pytest.raises(JournalLocked, match="must have its journal alone"),
    ):
        lock_run(path, None)
    with lock_run(path, None):
        for run in ("a", None):
            with pytest.raises(JournalLocked, match="must have its journal alone"):
                lock_run(path, run)
    with lock_run(path, "a"):
        pass
    assert os.listdir(tmp_path) == []


def test_a_lock_that_cannot_be_made_is_an_error_with_the_path(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"cannot lock the journal .*j\.db: No such file"):
        lock_run(tmp_path / "no folder" / "j.db", "a")


def test_a_journal_with_a_second_name_is_refused_because_the_lock_of_the_first_would_not_hold(tmp_path: Path) -> None:
    path, second = tmp_path / "j.db", tmp_path / "copy.db"
    rollouts = [rf.Rollout(group_id="q", response="x")]
    rf.score(rollouts, one, journal=path)
    os.link(path, second)
    for name in (path, second):
        with pytest.raises(JournalError, match=rf"must have one name, .* got .*{name.name} with 2 hard links; make a"):
            rf.score(rollouts, one, journal=name)
    second.unlink()
    assert rf.score(rollouts, one, journal=path)[0].cached
