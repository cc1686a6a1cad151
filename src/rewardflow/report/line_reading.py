"""Reads files in which the last line of each step counts, without decoding the others.

Always true: only the last complete line of each step and source is decoded; a last line that is still being written is
skipped; any other line that is damaged, or of a later schema, is an error that names the file and the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from rewardflow.errors import InvalidInput
from rewardflow.observe.events import SCHEMA_VERSION
from rewardflow.report.fields import Fields

# The beginning of a line as the project's own writers make it. Any other line is decoded to find its step.
_BEGINNING = re.compile(rb'\{"v":(\d{1,9}),"step":(-?\d{1,18}),"source":"(\w+)"')
_TAIL_BYTES = 1 << 20


def last_lines(path: Path, source: str) -> dict[int, Fields]:
    """Returns the last line of each step, in order of the steps. A missing file has no lines."""
    kept: dict[int, tuple[int, bytes]] = {}
    for number, line in _whole_lines(path):
        found = _BEGINNING.match(line)
        if found is not None and found[3] == source.encode():
            _check_version(int(found[1]), path, number)
            kept[int(found[2])] = (number, line)
        elif found is None:
            data = _decoded(path, number, line)
            _check_version(data.get("v"), path, number)
            if data.get("source") == source:
                kept[_step_of(data, path, number)] = (number, line)
    return {
        step: Fields(_decoded(path, number, line), f"{path}, line {number}")
        for step, (number, line) in sorted(kept.items())
    }


def last_line(path: Path) -> dict[str, Any] | None:
    """Returns the last complete line of a file of any size."""
    return next(tail_lines(path), None)


def tail_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the complete lines in the last megabyte of a file, the last one first."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return
    for line in reversed(lines):
        data = _try_decoding(line)
        if data is not None:
            yield data


def first_line(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            return _try_decoding(file.readline(_TAIL_BYTES))
    except FileNotFoundError:
        return None


def _whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n") or _try_decoding(line) is not None:
                yield number, line


def _decoded(path: Path, number: int, line: bytes) -> dict[str, Any]:
    data = _try_decoding(line)
    if data is None:
        raise InvalidInput(f"{path}, line {number}: every line must be a JSON object, got {line[:80]!r}")
    return data


def _try_decoding(line: bytes) -> dict[str, Any] | None:
    try:
        data = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return data if isinstance(data, dict) else None


def _check_version(version: object, path: Path, number: int) -> None:
    if not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION:
        raise InvalidInput(
            f"{path}, line {number}: v must be 1 to {SCHEMA_VERSION}, which this rewardflow reads, got {version!r}"
        )


def _step_of(data: dict[str, Any], path: Path, number: int) -> int:
    step = data.get("step")
    if not isinstance(step, int) or isinstance(step, bool):
        raise InvalidInput(f"{path}, line {number}: a step is needed, got {step!r}")
    return step
