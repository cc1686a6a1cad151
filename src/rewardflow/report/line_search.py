"""Finds the lines of a few steps in a file of millions of lines by probing a few hundred places.

Always true: the amount read is bounded, whatever the file's size; `is_whole` is false if lines of the wanted steps were
left out for that. Steps grow along the file, except for steps that are open together and for a resumed run, which goes
back; the search allows for both.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import orjson

_PROBE_LINES = 64  # not every line belongs to a step

_STEP = re.compile(rb'"step":(-?\d{1,18})[,}]')


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """The bounds of a search: the size of a file to read as a whole, the number of probes, and the most to read."""

    num_probes: int = 512
    small_bytes: int = 8 << 20
    max_bytes: int = 96 << 20


DEFAULT_EFFORT = Effort()


@dataclass(frozen=True, slots=True)
class FoundLines:
    lines: list[dict[str, Any]]
    is_whole: bool


def lines_of_steps(
    path: Path, steps: Collection[int], *, open_together: int, also: bytes = b"", effort: Effort = DEFAULT_EFFORT
) -> FoundLines:
    """Returns the lines of these steps, and nearby lines without a step that contain `also`."""
    if not steps or not path.exists():
        return FoundLines([], is_whole=True)
    lines: list[dict[str, Any]] = []
    num_bytes = 0
    with path.open("rb") as file:
        for start, end in _stretches(file, *_ends(steps), open_together, effort):
            num_bytes += end - start
            if num_bytes > effort.max_bytes:
                return FoundLines(lines, is_whole=False)
            lines += _lines_between(file, start, end, steps, also)
    return FoundLines(lines, is_whole=True)


def _ends(steps: Collection[int]) -> tuple[int, int]:
    """Returns the first and the last step. A file may make a range longer than `min` could ever look through."""
    return (steps[0], steps[-1]) if isinstance(steps, range) else (min(steps), max(steps))


def _stretches(file: BinaryIO, first: int, last: int, slack: int, effort: Effort) -> list[tuple[int, int]]:
    """Returns the parts of the file that may hold steps from first to last; joins parts that touch."""
    size = file.seek(0, 2)
    if size <= effort.small_bytes:
        return [(0, size)]
    pitch = max(1, size // effort.num_probes)
    probes = [(0, None), *((at, _step_at(file, at)) for at in range(pitch, size, pitch))]
    stretches: list[tuple[int, int]] = []
    for place, (start, here) in enumerate(probes):
        end, there = probes[place + 1] if place + 1 < len(probes) else (size, None)
        known = [step for step in (here, there) if step is not None]
        # Between two probes are their steps and those open at the same time; an unknown end could be any step.
        may_be_here = not known or (min(known) - slack <= last and max(known) + slack >= first)
        if may_be_here and stretches and stretches[-1][1] == start:
            stretches[-1] = (stretches[-1][0], end)
        elif may_be_here:
            stretches.append((start, end))
    return stretches


def _step_at(file: BinaryIO, at: int) -> int | None:
    file.seek(at)
    file.readline()
    for _ in range(_PROBE_LINES):
        found = _STEP.search(file.readline())
        if found is not None:
            return int(found[1])
    return None


def _lines_between(
    file: BinaryIO, start: int, end: int, steps: Collection[int], also: bytes
) -> Iterator[dict[str, Any]]:
    """Yields the lines that begin in this part of the file."""
    file.seek(max(0, start - 1))
    if start:
        file.readline()
    while file.tell() < end:
        line = file.readline()
        if not line:
            return
        found = _STEP.search(line)
        is_wanted = int(found[1]) in steps if found is not None else bool(also) and also in line
        if is_wanted:
            try:
                data = orjson.loads(line)
            except orjson.JSONDecodeError:  # the last line, cut short
                continue
            if isinstance(data, dict):
                yield data
