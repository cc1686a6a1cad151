"""Decompresses the body of a response under a limit of bytes.

Always true: at most `limit` bytes are produced, and one more to notice that the limit is passed. At most 64 KiB of them
are produced on the event loop; a thread produces the rest, so that large bodies do not hold up other calls.

The client asks for bodies without compression (`ACCEPT_ENCODING`), because they are small. Some servers compress
anyway: `gzip` and `deflate` are read, and any other encoding is refused by its name.
"""

from __future__ import annotations

import asyncio
import zlib

ACCEPT_ENCODING = "identity"

_ON_LOOP_BYTES = 64 * 1024
_MAX_MEMBERS = 64  # of a gzip body; an honest server sends one
_GZIP, _ZLIB, _RAW_DEFLATE = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS


class BadEncoding(Exception):
    """The body cannot be decompressed; the text says why."""


async def decompress(body: bytes, encoding: str | None, limit: int) -> bytes:
    """Returns the body without its encoding; one byte more than `limit` stands for any larger body."""
    name = (encoding or "identity").strip().lower()
    if name in ("identity", ""):
        return body
    if name not in ("gzip", "x-gzip", "deflate"):
        raise BadEncoding(f"the content encoding {name[:40]!r} is not one of gzip, deflate and identity")
    inflater = _Inflater(body, name, limit)
    inflater.run(_ON_LOOP_BYTES)
    if not inflater.is_done:
        await asyncio.to_thread(inflater.run, limit + 1)
    return inflater.result()


class _Inflater:
    """Decompresses one body in portions."""

    def __init__(self, body: bytes, name: str, limit: int) -> None:
        self._limit = limit
        self._rest = body
        self._wbits = _GZIP if name != "deflate" else (_ZLIB if body[:1] and body[0] & 0xF == 8 else _RAW_DEFLATE)
        self._decoder = zlib.decompressobj(self._wbits)
        self._parts: list[bytes] = []
        self._size = 0
        self._num_members = 1
        self.is_done = False

    def run(self, max_bytes: int) -> None:
        """Produces bytes until there are `max_bytes` of them, or the limit is passed, or the body ends."""
        end = min(max_bytes, self._limit + 1)
        while not self.is_done and self._size < end:
            try:
                part = self._decoder.decompress(self._rest, end - self._size)
            except zlib.error as error:
                raise BadEncoding(f"the compressed body is damaged: {error}") from None
            self._parts.append(part)
            self._size += len(part)
            self._advance(part)
        self.is_done = self.is_done or self._size > self._limit

    def result(self) -> bytes:
        if self._size <= self._limit and not self._decoder.eof:
            raise BadEncoding("the compressed body ends early")
        return b"".join(self._parts)

    def _advance(self, part: bytes) -> None:
        if not self._decoder.eof:
            self._rest = self._decoder.unconsumed_tail
            self.is_done = not self._rest and not part
            return
        self._rest = self._decoder.unused_data
        if not self._rest or self._wbits != _GZIP:
            self.is_done = True
            return
        self._num_members += 1
        if self._num_members > _MAX_MEMBERS:
            raise BadEncoding(f"the compressed body has more than {_MAX_MEMBERS} parts")
        self._decoder = zlib.decompressobj(self._wbits)
