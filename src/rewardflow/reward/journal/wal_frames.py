"""Reads the WAL that a killed run has left beside its journal, to find damage that SQLite passes over in silence.

SQLite takes the frames of a WAL up to the first whose checksum fails, and drops all others without a word: the end of a
WAL is always like that after a kill, with a commit that was not finished, or with frames of an earlier use of the file.
But where a later frame of the same use ends a commit, that commit was finished, so the frame before it changed since.
So did a frame that ends a commit and the file: a file becomes longer when the content is there.

Always true: the WAL is only read, and `find_damage` does not open the journal, because closing it again would drop this
process's locks on it. A WAL to which a run writes meanwhile is not called damaged for that. `recover_pages` believes a
frame only if its checksum proves it.

The format: https://www.sqlite.org/fileformat2.html#the_write_ahead_log
"""

from __future__ import annotations

import io
import itertools
import os
import shutil
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final, Self

_MAGIC: Final = 0x377F0682  # and its last bit: the words of checksums are big-endian
_HEADER: Final = struct.Struct(">IIII8sII")  # magic, version, bytes of a page, number of the use, salts, checksum
_FRAME: Final = struct.Struct(">II8sII")  # page, pages of the journal if it ends a commit, salts, checksum
HEADER_BYTES: Final = _HEADER.size
_CHECKED_OF_HEADER: Final = 24
_CHECKED_OF_FRAME: Final = 8
_PAGE_BYTES: Final = tuple(1 << bits for bits in range(9, 17))
_USUAL_PAGE_BYTES: Final = 4096
_NUM_LOOKS: Final = 4

_Checksum = tuple[int, int]


@dataclass(frozen=True, slots=True)
class WalDamage:
    """A broken frame of a finished commit."""

    wal: Path
    frame: int  # from 1; 0 is the header of the file
    num_commits: int  # that SQLite drops, at least

    def __str__(self) -> str:
        place = f"frame {self.frame}" if self.frame else "its header"
        return (
            f"{self.wal} changed on disk after it was written: {place} is broken, and SQLite drops it and everything "
            f"after it, {self.num_commits} or more commits"
        )


def find_damage(journal: Path) -> WalDamage | None:
    """Returns what is wrong with the WAL of a journal; None also for a journal without one."""
    wal = _wal_of(journal)
    try:
        if not journal.stat().st_size:  # SQLite removes a WAL beside an empty file
            return None
        before: tuple[bytes, int] | None = None
        for _ in range(_NUM_LOOKS):  # a run may begin the WAL anew while this reads it
            salts, damage = _look(wal)
            if damage is None or (salts, damage.frame) == before:
                return damage
            before = (salts, damage.frame)
    except OSError:  # none is there, or none that SQLite could read either
        return None
    return None


def is_header(data: bytes) -> bool:
    """Whether a WAL may begin with these bytes."""
    header = _Header.read(io.BytesIO(data))
    return header is not None and header.is_sound


def recover_pages(journal: Path, target: Path) -> int:
    """Writes the journal as it is after all whole frames of its WAL, also those behind a broken one.

    Returns the number of pages whose newest state was in a broken frame. They stay as they were before it, so the pages
    may contradict each other.
    """
    with _wal_of(journal).open("rb") as wal, target.open("r+b") as pages, journal.open("rb") as before:
        shutil.copyfileobj(before, pages)
        header = _Header.read(wal)
        if header is None:
            return 0
        frames = _of_this_use(_proven(wal, header), header)
        for frame in frames:
            if frame.is_proven:
                wal.seek(frame.place)
                pages.seek((frame.page - 1) * header.page_bytes)
                pages.write(wal.read(header.page_bytes))
        if frames:
            pages.truncate(_num_pages(frames) * header.page_bytes)
        pages.flush()
        os.fsync(pages.fileno())
    newest = {frame.page: frame.is_proven for frame in frames}
    return sum(not is_proven for is_proven in newest.values())


def _wal_of(journal: Path) -> Path:
    real = journal.resolve()  # SQLite names it after the file, not after a link to it
    return real.with_name(f"{real.name}-wal")


# -- the format --


@dataclass(frozen=True, slots=True)
class _Header:
    is_sound: bool
    page_bytes: int
    salts: bytes  # differ with each use of the file
    stored: _Checksum
    computed: _Checksum
    order: str  # of the bytes of a word

    @classmethod
    def read(cls, wal: BinaryIO) -> Self | None:
        """Returns None for a file without frames. Of a broken header, the size of a page as it must have been."""
        data = wal.read(_HEADER.size)
        if len(data) < _HEADER.size:
            return None
        magic, _, page_bytes, _, salts, *stored = _HEADER.unpack(data)
        is_known = magic & ~1 == _MAGIC
        order = (">" if magic & 1 else "<") if is_known else ("<" if sys.byteorder == "little" else ">")
        computed = _checksum(data[:_CHECKED_OF_HEADER], (0, 0), order)
        is_sound = is_known and computed == tuple(stored)
        if not is_sound:
            page_bytes = page_bytes if page_bytes in _PAGE_BYTES else _USUAL_PAGE_BYTES
        return cls(is_sound, page_bytes, salts, (stored[0], stored[1]), computed, order)


@dataclass(frozen=True, slots=True)
class _Frame:
    page: int
    num_pages: int  # of the journal after the commit that ends here; 0 within a commit
    salts: bytes
    stored: _Checksum
    place: int  # of its page in the file
    is_proven: bool = False


def _frames(wal: BinaryIO, header: _Header) -> Iterator[tuple[_Frame, bytes]]:
    """Yields every whole frame, and what its checksum covers."""
    for place in itertools.count(_HEADER.size + _FRAME.size, _FRAME.size + header.page_bytes):
        data = wal.read(_FRAME.size + header.page_bytes)
        if len(data) < _FRAME.size + header.page_bytes:
            return
        page, num_pages, salts, *stored = _FRAME.unpack_from(data)
        yield (
            _Frame(page, num_pages, salts, (stored[0], stored[1]), place),
            data[:_CHECKED_OF_FRAME] + data[_FRAME.size :],
        )


def _checksum(data: bytes, before: _Checksum, order: str) -> _Checksum:
    first, second = before
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for one, other in zip(words, words, strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return first, second


# -- what is broken --


def _look(wal: Path) -> tuple[bytes, WalDamage | None]:
    """Returns the salts of the WAL and its damage: what a run writes meanwhile has other salts."""
    broken: int | None = None
    num_commits = 0
    with wal.open("rb") as file:
        if (header := _Header.read(file)) is None:
            return b"", None
        before = header.stored
        if not header.is_sound:
            broken = 0
        for number, (frame, covered) in enumerate(_frames(file, header), start=1):
            if broken is not None:  # behind a broken header, all frames count: no kill leaves them without one
                num_commits += frame.num_pages > 0 and (frame.salts == header.salts or not header.is_sound)
            elif frame.salts == header.salts and _checksum(covered, before, header.order) == frame.stored:
                before = frame.stored
            else:
                broken = number
                num_commits += frame.salts == header.salts and _ends(file, frame)
    return header.salts, WalDamage(wal, broken, num_commits) if broken is not None and num_commits else None


def _proven(wal: BinaryIO, header: _Header) -> list[_Frame]:
    """Returns every frame, and whether the checksum of the frame before it and its own prove it.

    Where the checksum of a frame does not match, either its content changed or the checksum that it holds. In the
    second case the next frame matches the checksum that was computed, which proves both.
    """
    frames: list[_Frame] = []
    stored, computed = header.stored, header.computed
    for frame, covered in _frames(wal, header):
        after = _checksum(covered, stored, header.order)
        if after != frame.stored and computed != stored and _checksum(covered, computed, header.order) == frame.stored:
            after = frame.stored
            if frames:
                frames[-1] = replace(frames[-1], is_proven=True)
        frames.append(replace(frame, is_proven=after == frame.stored and frame.page > 0))
        stored, computed = frame.stored, after
    return frames


def _ends(wal: BinaryIO, frame: _Frame) -> bool:
    """Whether a frame that was just read ends both a commit and the file."""
    return frame.num_pages > 0 and wal.tell() == os.fstat(wal.fileno()).st_size


def _of_this_use(frames: Sequence[_Frame], header: _Header) -> Sequence[_Frame]:
    """Returns the frames up to the last finished commit, without what earlier uses of the file have left behind it."""
    proven = [frame for frame in frames if frame.is_proven]
    salts = header.salts if header.is_sound or not proven else proven[0].salts
    is_end = [frame.num_pages > 0 and frame.salts == salts for frame in frames]
    ends = [at for at, frame in enumerate(frames) if is_end[at] and (frame.is_proven or at == len(frames) - 1)]
    return frames[: ends[-1] + 1] if ends else []


def _num_pages(frames: Sequence[_Frame]) -> int:
    """Returns how many pages the journal has after these frames, of which the last may be broken."""
    num_pages = 0
    for frame in frames:
        if frame.is_proven:
            num_pages = frame.num_pages or max(num_pages, frame.page)
    return num_pages
