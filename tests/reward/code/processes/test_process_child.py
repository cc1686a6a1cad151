"""A child answers the handshake, and every call that it reads gets exactly one reply."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rewardflow.errors import InvalidInput, RewardLoadError
from rewardflow.reward.code.current_call import Call
from rewardflow.reward.code.processes.process_channel import Child, start_child
from rewardflow.reward.code.processes.process_messages import (
    HANDSHAKE,
    HEADER,
    Handshake,
    Reply,
    decode_answer,
    decode_reply,
    dumps,
    frame,
    unpack_exception,
)
from rewardflow.reward.code.source import RewardSource

JUDGE = """
import threading

import rewardflow as rf


def compute_score(solution_str):
    rf.report_usage(cost_usd=0.25, tokens=12)
    assert threading.current_thread() is threading.main_thread()
    return float(solution_str)
"""


@pytest.fixture
def child() -> Iterator[Child]:
    child = start_child()
    child.connection.settimeout(60)
    yield child
    child.connection.close()
    child.popen.kill()
    child.popen.wait()


def ask(connection: socket.socket, number: int, body: bytes) -> Any:
    """Sends one frame, and returns the answer with the same number."""
    connection.sendall(frame(number, body))
    with connection.makefile("rb") as incoming:
        length, answered = HEADER.unpack(incoming.read(HEADER.size))
        assert answered == number
        return incoming.read(length)


def greet(child: Child, path: Path) -> Any:
    return decode_answer(ask(child.connection, HANDSHAKE, dumps(Handshake(dumps(RewardSource.of(path)), 1))))


def call(child: Child, number: int, **kwargs: str) -> Reply:
    return decode_reply(ask(child.connection, number, dumps((kwargs, Call(()), b""))))


def test_a_call_gets_a_reply_with_its_result_and_what_it_reported(child: Child, tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text(JUDGE)
    assert greet(child, tmp_path / "judge.py") is None
    reply = call(child, 1, solution_str="0.5")
    assert (reply.value, reply.failure) == (0.5, None)
    assert (reply.cost_usd, reply.tokens) == (0.25, 12)


def test_a_call_that_raises_or_cannot_be_read_gets_a_reply_and_the_next_one_works(child: Child, tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text(JUDGE)
    greet(child, tmp_path / "judge.py")
    raised = call(child, 1, solution_str="half")
    assert raised.failure is not None
    assert isinstance(unpack_exception(raised.failure), ValueError)
    assert raised.cost_usd == 0.25
    unreadable = decode_reply(ask(child.connection, 2, b"not a pickle"))
    assert unreadable.failure is not None
    error = unpack_exception(unreadable.failure)
    assert isinstance(error, InvalidInput)
    assert "must be readable in its process" in str(error)
    assert call(child, 3, solution_str="1").value == 1.0


def test_a_child_that_cannot_build_the_reward_says_why_and_ends(child: Child, tmp_path: Path) -> None:
    failure = greet(child, tmp_path / "absent.py")
    error = unpack_exception(failure)
    assert isinstance(error, RewardLoadError)
    assert "the reward's file must exist" in str(error)
    assert child.popen.wait(timeout=60) == 0
