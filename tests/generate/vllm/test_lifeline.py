"""Processes that end with the one they work for, as vLLM's do: real ones, killed as hard as the system can."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

WORKER = """
import sys
from rewardflow.generate.vllm.lifeline import end_with_owner

end_with_owner()
sys.stdout.write("up\\n")
sys.stdout.flush()
sys.stdin.read()
"""
OWNER = """
import subprocess, sys
from rewardflow.generate.vllm.lifeline import own_what_follows

own_what_follows()
subprocess.run([sys.executable, "-c", sys.argv[1]])
"""
END = "from rewardflow.generate.vllm.lifeline import end_with_owner; end_with_owner()"


def test_a_worker_ends_when_its_owner_is_killed() -> None:
    """Both write to one pipe, which is at its end when neither is there any more."""
    command = [sys.executable, "-c", OWNER, WORKER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "up\n"
        owner.kill()
        assert owner.stdout.read() == ""


def test_a_worker_whose_owner_is_gone_already_ends_at_once() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    named = {**os.environ, "REWARDFLOW_VLLM_OWNER": str(gone.pid)}
    assert subprocess.run([sys.executable, "-c", END], env=named, check=False).returncode == -signal.SIGKILL


def test_a_process_that_works_for_nobody_is_left_alone() -> None:
    without = {name: value for name, value in os.environ.items() if name != "REWARDFLOW_VLLM_OWNER"}
    assert subprocess.run([sys.executable, "-c", END], env=without, check=False).returncode == 0
