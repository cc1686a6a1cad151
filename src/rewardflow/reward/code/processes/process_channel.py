"""Starts a child process, and exchanges frames with it.

Always true: a frame arrives whole and in the order of sending, or not at all. A `Channel` never waits and belongs on
the loop's thread; `start_child` may wait and belongs on another thread. A child holds one end of a pipe, the lifeline,
that nobody writes to: when the parent ends, for any reason, the pipe closes and the child ends, too.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

from rewardflow.reward.code.processes.plain_data import MAX_FRAME_BYTES
from rewardflow.reward.code.processes.process_messages import HEADER, frame

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

_CHUNK_BYTES = 256 * 1024
# sys.path comes as plain arguments, so that the child imports none of the user's code before the path is set.
_BOOTSTRAP = (
    "import sys; sys.path[:] = sys.argv[3:]; from rewardflow.reward.code.processes.process_child import main; "
    "main(int(sys.argv[1]), int(sys.argv[2]))"
)


class Child(NamedTuple):
    popen: subprocess.Popen[bytes]
    connection: socket.socket
    lifeline: int


def start_child() -> Child:
    ours, theirs = socket.socketpair()
    their_lifeline, our_lifeline = os.pipe()
    path = [entry for entry in sys.path if isinstance(entry, str)]
    command = [sys.executable, "-c", _BOOTSTRAP, str(theirs.fileno()), str(their_lifeline), *path]
    try:
        popen = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(), their_lifeline),
            start_new_session=True,  # Ctrl-C reaches only the parent, and a kill also ends grandchildren
        )
    except BaseException:
        ours.close()
        os.close(our_lifeline)
        raise
    finally:
        theirs.close()
        os.close(their_lifeline)
    return Child(popen, ours, our_lifeline)


class Channel:
    """Sends and receives frames over one end of a socket pair, and never blocks the loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, connection: socket.socket, *, max_bytes: int = MAX_FRAME_BYTES
    ) -> None:
        self._max_bytes = max_bytes
        self._loop = loop
        self._connection = connection
        self._incoming = bytearray()
        self._outgoing = bytearray()

    def open(self, on_frame: Callable[[int, bytes], None], on_lost: Callable[[str], None]) -> None:
        """Calls `on_lost` when the other side is gone, with "", or has announced too large a frame, with the reason."""
        self._connection.setblocking(False)
        self._loop.add_reader(self._connection, self._read, on_frame, on_lost)

    def send(self, number: int, body: bytes) -> None:
        is_writing = bool(self._outgoing)
        self._outgoing += frame(number, body)
        if not is_writing:
            self._write()

    def close(self) -> None:
        if self._connection.fileno() >= 0:
            self._loop.remove_reader(self._connection)
            self._loop.remove_writer(self._connection)
            self._connection.close()

    def _write(self) -> None:
        try:
            del self._outgoing[: self._connection.send(self._outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            self._outgoing.clear()  # the other side is gone; `_read` sees that and reports it
        if self._outgoing:
            self._loop.add_writer(self._connection, self._write)
        else:
            self._loop.remove_writer(self._connection)

    def _read(self, on_frame: Callable[[int, bytes], None], on_lost: Callable[[str], None]) -> None:
        try:
            chunk = self._connection.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            on_lost("")
            return
        self._incoming += chunk
        while len(self._incoming) >= HEADER.size:
            length, number = HEADER.unpack_from(self._incoming)
            if length > self._max_bytes:
                on_lost(f"is too large: at most {self._max_bytes} bytes, got {length}")
                return
            end = HEADER.size + length
            if len(self._incoming) < end:
                return
            body = bytes(memoryview(self._incoming)[HEADER.size : end])
            del self._incoming[:end]
            on_frame(number, body)
