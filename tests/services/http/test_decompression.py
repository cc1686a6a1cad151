"""How many bytes a compressed body may become, and where they are produced."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.services.http.decompression import BadEncoding, _Inflater, decompress

LIMIT = 2**20


def unpacked(body: bytes, encoding: str | None, limit: int = LIMIT) -> bytes:
    return asyncio.run(decompress(body, encoding, limit))


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


@given(st.binary(max_size=2000), st.integers(1, 300))
def test_what_was_compressed_is_returned(body: bytes, num_repeats: int) -> None:
    whole = body * num_repeats
    assert unpacked(gzip.compress(whole), "gzip") == whole
    assert unpacked(zlib.compress(whole), "Deflate") == whole
    assert unpacked(whole, None) == whole


def test_deflate_without_its_header_and_gzip_in_parts_are_read() -> None:
    assert unpacked(raw_deflate(b"some text"), "deflate") == b"some text"
    assert unpacked(gzip.compress(b"some ") + gzip.compress(b"text"), "x-gzip") == b"some text"


@pytest.mark.parametrize("size", [LIMIT + 1, 10 * LIMIT, 50 * LIMIT])
def test_a_bomb_of_any_size_becomes_one_byte_more_than_the_limit(size: int) -> None:
    assert len(unpacked(gzip.compress(bytes(size), compresslevel=1), "gzip")) == LIMIT + 1


def test_a_body_of_exactly_the_limit_is_whole() -> None:
    assert len(unpacked(gzip.compress(bytes(LIMIT)), "gzip")) == LIMIT


class CountingExecutor(ThreadPoolExecutor):
    num_submitted = 0

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        self.num_submitted += 1
        return super().submit(*args, **kwargs)


@pytest.mark.parametrize(("size", "num_in_threads"), [(64 * 1024 - 1, 0), (LIMIT, 1), (10 * LIMIT, 1)])
def test_a_thread_produces_what_is_beyond_64_kib(size: int, num_in_threads: int) -> None:
    async def run() -> int:
        executor = CountingExecutor()
        asyncio.get_running_loop().set_default_executor(executor)
        await decompress(gzip.compress(bytes(size)), "gzip", LIMIT)
        return executor.num_submitted

    assert asyncio.run(run()) == num_in_threads


def test_a_portion_is_never_larger_than_allowed() -> None:
    inflater = _Inflater(gzip.compress(bytes(10 * LIMIT)), "gzip", LIMIT)
    for end in (1, 1000, 64 * 1024):
        inflater.run(end)
        assert (inflater._size, inflater.is_done) == (end, False)


@pytest.mark.parametrize(
    ("body", "encoding", "why"),
    [
        (b"plain text", "gzip", "damaged"),
        (gzip.compress(b"some text", mtime=0)[:-9], "gzip", "ends early"),
        (b"", "gzip", "ends early"),
        (gzip.compress(b"", mtime=0) * 100, "gzip", "more than 64 parts"),
        (gzip.compress(b"some text", mtime=0), "gzip, gzip", "not one of gzip, deflate and identity"),
        (b"", "zstd", "'zstd' is not one of"),
    ],
)
def test_a_body_that_cannot_be_read_says_why(body: bytes, encoding: str, why: str) -> None:
    with pytest.raises(BadEncoding, match=why):
        unpacked(body, encoding)


@given(st.binary(max_size=500), st.sampled_from(["gzip", "deflate"]))
def test_any_bytes_give_a_body_or_a_reason(body: bytes, encoding: str) -> None:
    with contextlib.suppress(BadEncoding):
        assert len(unpacked(body, encoding, 1000)) <= 1001
