"""One request to the hostile server: which rollout it is about, the true score, and the tools to answer it badly.

Always true: the decoy is a score that the server never believes itself, so a verdict that equals it was invented or
belongs to another rollout.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import orjson

SCALE = 1_000_000  # scores are whole numbers up to this, so that two rollouts hardly ever have the same score
CRITERION = "quality"
PROMPT_USD_PER_MILLION = 10.0
COMPLETION_USD_PER_MILLION = 1000.0  # expensive, so that small runs reach a cap

_CHARS_PER_TOKEN = 4
_PIECE_BYTES = 65_536


class Carries(Enum):
    """What an answer says about the rollout, and so what an honest client may conclude from it."""

    TRUTH = "the true score: the client must believe it"
    PERHAPS = "the true score in a doubtful form: the client may believe it or fail the call"
    NOTHING = "no score: the client must fail the call"


@dataclass(frozen=True, slots=True)
class Misbehaviour:
    """One way to answer. `answer` writes to the exchange and returns when the server has nothing more to say."""

    name: str
    carries: Carries
    answer: Callable[[Exchange], Awaitable[None]]
    weight: float = 1.0  # how often it is chosen, compared with others; slow ones are rare


class Exchange:
    """A request and its connection. The server closes the connection after the answer unless `stays_open` is set."""

    def __init__(
        self,
        *,
        rollout: int,
        truth: int,
        payload: Mapping[str, Any],
        headers: Mapping[str, str],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        chance: random.Random,
    ) -> None:
        self.rollout = rollout
        self.truth = truth
        self.decoy = (truth + 1 + chance.randrange(SCALE - 1)) % (SCALE + 1)
        self.payload = payload
        self.headers = headers
        self.chance = chance
        self.stays_open = False
        self._reader = reader
        self._writer = writer

    @property
    def key(self) -> str:
        """The API key that the client sent."""
        return self.headers.get("authorization", "").removeprefix("Bearer ")

    @property
    def completion_tokens(self) -> int:
        """The tokens that this answer is charged for; the client's `max_tokens` bounds them."""
        return min(int(self.payload.get("max_tokens", 100)), 20 + self.rollout % 80)

    @property
    def prompt_tokens(self) -> int:
        return sum(len(str(message.get("content"))) for message in self.payload["messages"]) // _CHARS_PER_TOKEN

    @property
    def charge_usd(self) -> float:
        spent = self.prompt_tokens * PROMPT_USD_PER_MILLION + self.completion_tokens * COMPLETION_USD_PER_MILLION
        return spent / 1_000_000

    # -- sending -----------------------------------------------------------------------------------------------------

    async def send(self, data: bytes) -> None:
        for start in range(0, len(data), _PIECE_BYTES):
            self._writer.write(data[start : start + _PIECE_BYTES])
            await self._writer.drain()

    async def drip(self, data: bytes, pause_s: float, piece_bytes: int = 1) -> None:
        """Sends the data in small pieces with a pause after each."""
        for start in range(0, len(data), piece_bytes):
            await self.send(data[start : start + piece_bytes])
            await asyncio.sleep(pause_s)

    async def hang(self) -> None:
        """Waits until the client goes away."""
        while await self._reader.read(_PIECE_BYTES):
            pass

    async def stays_idle(self, duration_s: float) -> bool:
        """Returns whether the client sends nothing more on this connection for so long."""
        try:
            async with asyncio.timeout(duration_s):
                arrived = await self._reader.read(_PIECE_BYTES)
        except TimeoutError:
            return True
        if arrived:
            self._reader.feed_data(arrived)  # the next request is read as if nobody had looked
        return False

    async def flood(self, piece: bytes, pause_s: float = 0.0) -> None:
        """Sends the piece again and again until the client goes away."""
        while True:
            await self.send(piece)
            await asyncio.sleep(pause_s)

    def half_close(self) -> None:
        self._writer.write_eof()

    def reset(self) -> None:
        """Ends the connection with a reset instead of an orderly close."""
        plain: socket.socket | None = self._writer.get_extra_info("socket")
        if plain is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    # -- answers -----------------------------------------------------------------------------------------------------

    def verdict(self, score: int | None = None) -> str:
        """Returns the text of a verdict; the true one if no other score is given."""
        given = self.truth if score is None else score
        return orjson.dumps({"reason": f"seen {self.rollout}", CRITERION: given}).decode()

    def completion(self, text: Any = None, **fields: Any) -> dict[str, Any]:
        """Returns the body of an ordinary answer with this text; with the true verdict if none is given."""
        message = {"role": "assistant", "content": self.verdict() if text is None else text}
        usage = {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return {"id": f"chat-{self.rollout}", "object": "chat.completion", "choices": [choice], "usage": usage} | fields

    async def reply(self, body: Any, *headers: str, status: str = "200 OK") -> None:
        """Sends a well-formed response with this body, and keeps the connection open."""
        await self.send(response(body, *headers, status=status))
        self.stays_open = True

    async def reply_text(self, text: Any) -> None:
        """Sends a well-formed chat completion with this text."""
        await self.reply(self.completion(text))


def response(body: Any, *headers: str, status: str = "200 OK", length: int | str | None = None) -> bytes:
    """Returns a whole HTTP response. A body that is not bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    size = len(data) if length is None else length
    return head(f"Content-Length: {size}", *headers, status=status) + data


def head(*headers: str, status: str = "200 OK") -> bytes:
    named = any(header.lower().startswith("content-type") for header in headers)
    kind = () if named else ("Content-Type: application/json",)
    return "\r\n".join([f"HTTP/1.1 {status}", *kind, *headers, "", ""]).encode("latin-1")


def chunk(data: bytes, extension: str = "") -> bytes:
    return f"{len(data):x}{extension}\r\n".encode() + data + b"\r\n"
