"""Reads a collection of texts from disk: JSONL, parquet, or a folder of text files.

Always true: every text has a name; an error about a row names its number. The digest depends only on the names and
bytes of the texts: not on the path of the collection, nor on other files beside it.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from rewardflow.errors import InvalidInput
from rewardflow.extras import import_extra

_SUFFIXES = (".txt", ".md", ".rst")
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Passage:
    """A text of the collection, or a piece of one. The id says where in the collection it is from."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Collection:
    """A file with the text of each row in `text_field` and maybe a name in `id_field`, or a folder of text files."""

    path: Path
    text_field: str = "text"
    id_field: str = "id"

    def read(self) -> Iterator[Passage]:
        """Yields the texts uncut."""
        path = self.path
        if path.is_dir():
            return _read_folder(path)
        self._check_file()
        rows = _parquet_rows(path, self.text_field, self.id_field) if path.suffix == ".parquet" else _json_rows(path)
        return _named(rows, path, self.text_field, self.id_field)

    def digest(self) -> str:
        """Returns the hash of all that `read` reads, from the bytes: about a second per gigabyte."""
        if not self.path.is_dir():
            self._check_file()
            return _digest_of_file(self.path).hex()
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for name, file in _files_of(self.path):
            encoded = name.encode("utf-8", "surrogateescape")
            digest.update(len(encoded).to_bytes(8, "big") + encoded + _digest_of_file(file))
        return digest.hexdigest()

    def _check_file(self) -> None:
        if not self.path.is_file():
            raise InvalidInput(f"passages must be a file or a folder that exists, got {self.path}")
        if self.path.suffix not in (".jsonl", ".ndjson", ".parquet"):
            raise InvalidInput(f"passages must be .jsonl, .ndjson, .parquet or a folder of text, got {self.path}")


def _digest_of_file(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=_DIGEST_BYTES)).digest()


def _files_of(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yields text files with their names inside the folder, sorted by name; skips hidden files."""
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder)
        is_hidden = any(part.startswith(".") for part in name.parts)
        if file.suffix.lower() in _SUFFIXES and not is_hidden and file.is_file():
            yield name.as_posix(), file


def _read_folder(folder: Path) -> Iterator[Passage]:
    for name, file in _files_of(folder):
        yield Passage(name, file.read_text("utf-8", errors="replace"))


def _json_rows(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield number, orjson.loads(line)
                except orjson.JSONDecodeError as error:
                    raise InvalidInput(f"{path}, line {number}, must be JSON: {error}") from error


def _parquet_rows(path: Path, text_field: str, id_field: str) -> Iterator[tuple[int, Any]]:
    file = import_extra("pyarrow.parquet", "retrieval", "a collection in parquet").ParquetFile(path)
    names = file.schema_arrow.names
    if text_field not in names:
        raise InvalidInput(f"text_field must be a column of {path} ({', '.join(names)}), got {text_field!r}")
    batches = file.iter_batches(columns=[name for name in dict.fromkeys((text_field, id_field)) if name in names])
    return enumerate(itertools.chain.from_iterable(batch.to_pylist() for batch in batches), 1)


def _named(rows: Iterable[tuple[int, Any]], path: Path, text_field: str, id_field: str) -> Iterator[Passage]:
    for number, row in rows:
        text = row.get(text_field) if isinstance(row, dict) else None
        if not isinstance(text, str):
            raise InvalidInput(f"{path}, row {number}, must have text in {text_field!r}, got {text!r:.60}")
        name = row.get(id_field)
        yield Passage(str(number if name is None else name), text)
