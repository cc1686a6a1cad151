"""One process at a time gets a lock, the others learn who has it, and it ends with its process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rewardflow.observe.process_lock import LockHeld, ProcessLock, refuse_if_held

HOLDER = """
import sys
from pathlib import Path
from rewardflow.observe.process_lock import ProcessLock
with ProcessLock.acquire(Path(sys.argv[1])):
    print("holding", flush=True)
    sys.stdin.read()
"""


def test_the_second_process_learns_who_the_first_one_is_and_gets_the_lock_when_that_is_dead(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"holding\n"
        with pytest.raises(LockHeld) as refused:
            ProcessLock.acquire(path)
        assert refused.value.holder.startswith(f"process {holder.pid} on {socket.gethostname()}, since 20")
        with pytest.raises(LockHeld, match="is locked"):
            refuse_if_held(path)
        holder.kill()
    refuse_if_held(path)
    ProcessLock.acquire(path).release()


def test_a_lock_is_refused_within_one_process_too_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with ProcessLock.acquire(path) as lock:
        with pytest.raises(LockHeld) as refused:
            ProcessLock.acquire(path)
        assert f"process {os.getpid()} " in refused.value.holder
        assert path.stat().st_mode & 0o777 == 0o600
    lock.release()
    assert os.listdir(tmp_path) == []
    refuse_if_held(path)
    ProcessLock.acquire(path).release()


def test_a_holder_that_has_not_written_its_name_is_another_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with ProcessLock.acquire(path):
        for text in ("", "[]", '{"process_id": "x"}', '{"process_id": 1}'):
            path.write_text(text)
            with pytest.raises(LockHeld) as refused:
                ProcessLock.acquire(path)
            assert refused.value.holder == "another process"


def test_two_never_hold_it_at_once_although_each_holder_removes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    inside: list[int] = []

    def try_often(number: int) -> int:
        num_held = 0
        for _ in range(200):
            try:
                with ProcessLock.acquire(path):
                    inside.append(number)
                    assert len(inside) == 1
                    num_held += 1
                    inside.remove(number)
            except LockHeld:
                continue
        return num_held

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(try_often, range(4))) > 0


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("keep")
    (tmp_path / "lock").symlink_to(tmp_path / "theirs")
    with pytest.raises(OSError, match="symbolic link"):
        ProcessLock.acquire(tmp_path / "lock")
    assert (tmp_path / "theirs").read_text() == "keep"
