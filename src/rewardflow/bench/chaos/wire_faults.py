"""Misbehaviours of a server below JSON: connections, framing, headers and encodings.

Always true: an answer that is cut off carries nothing, even if the part that arrived holds a number.
"""

from __future__ import annotations

import asyncio
import functools
import gzip
import os
import zlib

import orjson

from rewardflow.bench.chaos.exchange import Carries, Exchange, Misbehaviour, chunk, head, response

_SLOW = 0.15  # the weight of what holds a slot until the call's timeout
_BOMB_BYTES = 64 * 2**20


# -- cut off ---------------------------------------------------------------------------------------------------------


async def close_at_once(_x: Exchange) -> None:
    return


async def close_in_status_line(x: Exchange) -> None:
    await x.send(b"HTTP/1.1 20")


async def close_in_headers(x: Exchange) -> None:
    await x.send(head("Content-Length: 400")[:-9])


async def close_after_headers(x: Exchange) -> None:
    await x.send(head("Content-Length: 400"))


async def close_in_body(x: Exchange) -> None:
    whole = response(x.completion())
    await x.send(whole[: x.chance.randrange(len(whole) // 2, len(whole) - 1)])


async def close_before_last_byte(x: Exchange) -> None:
    await x.send(response(x.completion())[:-1])


async def cut_after_a_digit(x: Exchange) -> None:
    """Sends a verdict whose number is cut off, with a length that fits what was sent."""
    await x.reply(x.completion(x.verdict()[:-3]))


async def reset_at_once(x: Exchange) -> None:
    x.reset()


async def reset_in_body(x: Exchange) -> None:
    await x.send(response(x.completion())[:-20])
    x.reset()


async def half_close(x: Exchange) -> None:
    x.half_close()
    await asyncio.sleep(0.02)


# -- lengths and chunks ----------------------------------------------------------------------------------------------


async def length_too_small(x: Exchange) -> None:
    body = orjson.dumps(x.completion(x.verdict(x.decoy)))
    await x.send(response(body, length=len(body) - 30))


async def length_too_large(x: Exchange) -> None:
    body = orjson.dumps(x.completion(x.verdict(x.decoy)))
    await x.send(response(body, length=len(body) + 1))


async def length_negative(x: Exchange) -> None:
    await x.send(response(x.completion(x.verdict(x.decoy)), length=-5))


async def length_not_a_number(x: Exchange) -> None:
    await x.send(response(x.completion(x.verdict(x.decoy)), length="many"))


async def two_lengths(x: Exchange) -> None:
    body = orjson.dumps(x.completion(x.verdict(x.decoy)))
    await x.send(response(body, f"Content-Length: {len(body) - 40}"))


async def length_and_chunks(x: Exchange) -> None:
    body = orjson.dumps(x.completion())
    framed = chunk(body) + chunk(b"")
    await x.send(head("Transfer-Encoding: chunked", f"Content-Length: {len(framed)}") + framed)


async def chunks_of_one_byte(x: Exchange) -> None:
    body = orjson.dumps(x.completion())
    pieces = b"".join(chunk(body[at : at + 1]) for at in range(len(body)))
    await x.send(head("Transfer-Encoding: chunked") + pieces + chunk(b""))
    x.stays_open = True


async def chunk_size_not_hex(x: Exchange) -> None:
    await x.send(head("Transfer-Encoding: chunked") + b"zz\r\n" + orjson.dumps(x.completion(x.verdict(x.decoy))))


async def chunk_size_huge(x: Exchange) -> None:
    await x.send(head("Transfer-Encoding: chunked") + b"fffffffffffffffff\r\n" + orjson.dumps(x.completion()))


async def chunks_without_end(x: Exchange) -> None:
    await x.send(head("Transfer-Encoding: chunked") + chunk(orjson.dumps(x.completion(x.verdict(x.decoy)))))


async def chunk_extensions(x: Exchange) -> None:
    body = orjson.dumps(x.completion())
    await x.send(head("Transfer-Encoding: chunked") + chunk(body, ';note="500\\"') + chunk(b""))


async def chunk_trailers(x: Exchange) -> None:
    trailers = b"0\r\nContent-Length: 3\r\nx-score: 1\r\n\r\n"
    await x.send(head("Transfer-Encoding: chunked") + chunk(orjson.dumps(x.completion())) + trailers)


async def unknown_transfer_encoding(x: Exchange) -> None:
    await x.send(head("Transfer-Encoding: wonder") + orjson.dumps(x.completion(x.verdict(x.decoy)))[:-9])


async def body_until_close(x: Exchange) -> None:
    await x.send(head("Connection: close") + orjson.dumps(x.completion()))


async def surplus_in_same_segment(x: Exchange) -> None:
    """Sends a second response with another score right after the first one."""
    await x.send(response(x.completion()) + response(x.completion(x.verdict(x.decoy))))
    x.stays_open = True


# -- slowness and floods ---------------------------------------------------------------------------------------------


async def slow_pieces(x: Exchange) -> None:
    await x.drip(response(x.completion()), pause_s=0.003, piece_bytes=40)
    x.stays_open = True


async def drip_until_timeout(x: Exchange) -> None:
    await x.send(head("Transfer-Encoding: chunked"))
    await x.flood(chunk(b" "), pause_s=0.2)


async def never_answer(x: Exchange) -> None:
    await x.hang()


async def hang_after_headers(x: Exchange) -> None:
    await x.send(head("Content-Length: 500"))
    await x.hang()


async def hang_before_last_byte(x: Exchange) -> None:
    await x.send(response(x.completion(x.verdict(x.decoy)))[:-1])
    await x.hang()


async def endless_body(x: Exchange) -> None:
    await x.send(head("Transfer-Encoding: chunked"))
    await x.flood(chunk(b" " * 65_536))


async def endless_headers(x: Exchange) -> None:
    await x.send(b"HTTP/1.1 200 OK\r\n")
    await x.flood(b"x-more: and more\r\n" * 200, pause_s=0.01)


async def one_huge_header(x: Exchange) -> None:
    await x.send(response(x.completion(x.verdict(x.decoy)), f"x-long: {'a' * 2**20}"))


async def thousand_headers(x: Exchange) -> None:
    await x.send(response(x.completion(), *(f"x-{number}: {number}" for number in range(1000))))


async def hundred_interim_responses(x: Exchange) -> None:
    await x.send(b"HTTP/1.1 100 Continue\r\n\r\n" * 100 + response(x.completion()))


async def endless_interim_responses(x: Exchange) -> None:
    await x.flood(b"HTTP/1.1 102 Processing\r\n\r\n", pause_s=0.02)


# -- heads that are wrong --------------------------------------------------------------------------------------------


async def switching_protocols(x: Exchange) -> None:
    await x.send(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: judge\r\nConnection: Upgrade\r\n\r\n"
        + orjson.dumps(x.completion(x.verdict(x.decoy)))
    )


async def body_without_head(x: Exchange) -> None:
    await x.send(orjson.dumps(x.completion(x.verdict(x.decoy))))


async def status_not_a_number(x: Exchange) -> None:
    await x.send(response(x.completion(x.verdict(x.decoy)), status="OK 200"))


async def unknown_version(x: Exchange) -> None:
    await x.send(response(x.completion()).replace(b"HTTP/1.1", b"HTTP/7.3", 1))


async def junk_before_head(x: Exchange) -> None:
    await x.send(b"\x00\x01junk\r\n" + response(x.completion(x.verdict(x.decoy))))


async def random_bytes(x: Exchange) -> None:
    await x.send(x.chance.randbytes(x.chance.randrange(1, 5000)))


async def alert_of_tls(x: Exchange) -> None:
    await x.send(b"\x15\x03\x01\x00\x02\x02\x28")


async def header_without_colon(x: Exchange) -> None:
    await x.send(response(x.completion(), "this line has none"))


async def header_with_nul(x: Exchange) -> None:
    await x.send(response(x.completion(), "x-nul: a\x00b"))


async def folded_header(x: Exchange) -> None:
    await x.send(response(x.completion(), "x-folded: one", " two"))


# -- encodings -------------------------------------------------------------------------------------------------------


@functools.cache
def _bomb() -> bytes:
    return gzip.compress(b'{"choices": [' + b" " * _BOMB_BYTES)


async def compressed(x: Exchange) -> None:
    await x.reply(gzip.compress(orjson.dumps(x.completion())), "Content-Encoding: gzip")


async def compression_bomb(x: Exchange) -> None:
    await x.send(response(_bomb(), "Content-Encoding: gzip"))


async def compression_cut_off(x: Exchange) -> None:
    packed = gzip.compress(orjson.dumps(x.completion(x.verdict(x.decoy))))
    await x.reply(packed[: len(packed) // 2], "Content-Encoding: gzip")


async def compression_only_claimed(x: Exchange) -> None:
    await x.reply(x.completion(x.verdict(x.decoy)), "Content-Encoding: gzip")


async def compressed_twice(x: Exchange) -> None:
    await x.reply(gzip.compress(gzip.compress(orjson.dumps(x.completion()))), "Content-Encoding: gzip, gzip")


async def deflated_without_header(x: Exchange) -> None:
    await x.reply(zlib.compress(orjson.dumps(x.completion()), wbits=-15), "Content-Encoding: deflate")


async def garbage_after_compression(x: Exchange) -> None:
    await x.reply(gzip.compress(orjson.dumps(x.completion())) + os.urandom(50), "Content-Encoding: gzip")


async def unknown_encoding(x: Exchange) -> None:
    await x.reply(x.completion(), "Content-Encoding: rot13")


async def utf16(x: Exchange) -> None:
    await x.reply(orjson.dumps(x.completion()).decode().encode("utf-16"), "Content-Type: application/json")


async def byte_order_mark(x: Exchange) -> None:
    await x.reply(b"\xef\xbb\xbf" + orjson.dumps(x.completion()))


async def invalid_utf8(x: Exchange) -> None:
    await x.reply(orjson.dumps(x.completion()).replace(b"seen", b"se\xff\xfen"))


_NOTHING = (
    close_at_once,
    close_in_status_line,
    close_in_headers,
    close_after_headers,
    close_in_body,
    close_before_last_byte,
    cut_after_a_digit,
    reset_at_once,
    reset_in_body,
    half_close,
    length_too_small,
    length_too_large,
    length_negative,
    length_not_a_number,
    two_lengths,
    chunk_size_not_hex,
    chunk_size_huge,
    chunks_without_end,
    unknown_transfer_encoding,
    one_huge_header,
    switching_protocols,
    body_without_head,
    status_not_a_number,
    junk_before_head,
    random_bytes,
    alert_of_tls,
    compression_cut_off,
    compression_only_claimed,
)
_SLOW_NOTHING = (
    drip_until_timeout,
    never_answer,
    hang_after_headers,
    hang_before_last_byte,
    endless_body,
    endless_headers,
    endless_interim_responses,
    compression_bomb,
)
_PERHAPS = (
    length_and_chunks,
    chunk_extensions,
    chunk_trailers,
    body_until_close,
    thousand_headers,
    hundred_interim_responses,
    unknown_version,
    header_without_colon,
    header_with_nul,
    folded_header,
    compressed_twice,
    deflated_without_header,
    garbage_after_compression,
    unknown_encoding,
    utf16,
    byte_order_mark,
    invalid_utf8,
    surplus_in_same_segment,
)
_TRUTH = (chunks_of_one_byte, slow_pieces, compressed)

WIRE_FAULTS = (
    *(Misbehaviour(answer.__name__, Carries.NOTHING, answer) for answer in _NOTHING),
    *(Misbehaviour(answer.__name__, Carries.NOTHING, answer, _SLOW) for answer in _SLOW_NOTHING),
    *(Misbehaviour(answer.__name__, Carries.PERHAPS, answer) for answer in _PERHAPS),
    *(Misbehaviour(answer.__name__, Carries.TRUTH, answer) for answer in _TRUTH),
)

# After such an answer the client believes no answer that is under way on another used connection, not even a true one.
LEAVES_BYTES = frozenset({surplus_in_same_segment.__name__, length_too_small.__name__})
