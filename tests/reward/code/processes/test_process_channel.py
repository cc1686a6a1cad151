"""Frames arrive whole and in order, or not at all, and a child ends when its parent does."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
from collections.abc import Iterator

import pytest

from rewardflow.reward.code.processes.process_channel import Channel, Child, start_child
from rewardflow.reward.code.processes.process_messages import frame


class Received:
    """A channel on one end of a socket pair, the frames that arrived there, and the other end as a plain socket."""

    def __init__(self) -> None:
        near, self.far = socket.socketpair()
        self.far.setblocking(False)
        self.frames: list[tuple[int, bytes]] = []
        self.lost = asyncio.Event()
        self.channel = Channel(asyncio.get_running_loop(), near)
        self.channel.open(lambda number, body: self.frames.append((number, body)), self._on_lost)

    def _on_lost(self, problem: str) -> None:
        self.problem = problem
        self.channel.close()
        self.lost.set()

    async def wait_for_the_end(self) -> list[tuple[int, bytes]]:
        self.far.close()
        await self.lost.wait()
        return self.frames


async def read_all(far: socket.socket, num_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < num_bytes:
        data += await asyncio.get_running_loop().sock_recv(far, num_bytes - len(data))
    return bytes(data)


@pytest.fixture
def child() -> Iterator[Child]:
    child = start_child()
    yield child
    child.connection.close()
    child.popen.kill()
    child.popen.wait()


def test_frames_of_any_size_arrive_whole_and_in_order() -> None:
    sent = [(1, b""), (2, b"x" * 3_000_000), (3, b"short")]

    async def main() -> None:
        received = Received()
        await asyncio.get_running_loop().sock_sendall(received.far, b"".join(frame(*one) for one in sent))
        assert await received.wait_for_the_end() == sent

    asyncio.run(main())


def test_a_frame_that_comes_byte_by_byte_is_delivered_once() -> None:
    async def main() -> None:
        received = Received()
        for byte in frame(7, b"slow"):
            await asyncio.get_running_loop().sock_sendall(received.far, bytes([byte]))
            await asyncio.sleep(0)
        assert await received.wait_for_the_end() == [(7, b"slow")]

    asyncio.run(main())


def test_half_a_frame_is_never_delivered() -> None:
    async def main() -> None:
        received = Received()
        await asyncio.get_running_loop().sock_sendall(received.far, frame(1, b"whole") + frame(2, b"half")[:-2])
        assert await received.wait_for_the_end() == [(1, b"whole")]

    asyncio.run(main())


def test_sending_does_not_wait_for_a_reader_and_keeps_the_order() -> None:
    sent = [(number, bytes([number]) * 500_000) for number in range(10)]
    expected = b"".join(frame(*one) for one in sent)

    async def main() -> None:
        received = Received()
        for one in sent:
            received.channel.send(*one)
        assert await read_all(received.far, len(expected)) == expected
        await received.wait_for_the_end()

    asyncio.run(main())


def test_sending_to_a_side_that_is_gone_is_no_error_of_the_sender() -> None:
    async def main() -> None:
        received = Received()
        received.far.close()
        received.channel.send(1, b"x")
        assert await received.wait_for_the_end() == []

    asyncio.run(main())


def test_closing_twice_is_fine_and_the_other_side_sees_it() -> None:
    async def main() -> None:
        received = Received()
        received.channel.close()
        received.channel.close()
        assert await asyncio.get_running_loop().sock_recv(received.far, 1) == b""
        received.far.close()

    asyncio.run(main())


def test_a_child_leads_a_session_of_its_own_so_that_a_ctrl_c_is_for_the_parent(child: Child) -> None:
    assert os.getsid(child.popen.pid) == child.popen.pid
    os.close(child.lifeline)


def test_a_child_leaves_when_its_connection_is_closed(child: Child) -> None:
    child.connection.close()
    assert child.popen.wait(timeout=60) == 0
    os.close(child.lifeline)


@pytest.mark.skipif(not hasattr(fcntl, "F_SETSIG"), reason="only Linux has a signal sent when a pipe ends")
def test_a_child_is_killed_when_its_lifeline_ends(child: Child) -> None:
    os.close(child.lifeline)
    assert child.popen.wait(timeout=60) == -signal.SIGKILL
