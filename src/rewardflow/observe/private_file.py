"""Creates files that only their owner may read, and replaces files as a whole.

Always true: a new file has mode 0600, whatever the umask is, and is created exclusively: an existing file or a link of
that name is neither opened nor followed. Other programs see the old file or the new one, never half of it. A file that
takes the place of an older one is private as well, whatever the older one allowed: its contents are new.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

_EXCLUSIVELY: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)


def create(path: Path) -> BinaryIO:
    """Opens a file that must not exist yet; for callers that close it and see to it that it is on disk."""
    return os.fdopen(os.open(path, _EXCLUSIVELY, 0o600), "w+b")


@contextlib.contextmanager
def creating(path: Path) -> Iterator[BinaryIO]:
    """Opens a file that must not exist yet. After the block its contents survive a power cut."""
    with create(path) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Opens a new file that takes the place of `path` if the block ends without an error. Raises OSError."""
    _check_replaceable(path)
    draft = draft_of(path)
    try:
        with creating(draft) as file:
            yield file
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def write_private(path: Path, data: bytes) -> None:
    """Replaces the file with these bytes."""
    with replacing(path) as file:
        file.write(data)


def draft_of(path: Path) -> Path:
    """Returns an unused name beside the file; nobody can guess it and put a link there."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def _check_replaceable(path: Path) -> None:
    """Refuses to replace a device, a pipe or a folder. A link is replaced itself, not the file that it names."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
        raise OSError(errno.EINVAL, "only a regular file can be replaced", str(path))
