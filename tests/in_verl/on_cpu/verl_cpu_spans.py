"""Writes down when the device did what: generating, loading weights, log-probs, updates.

For tests only. The process that does the work writes a span of it as a line of one file, by the machine's monotonic
clock, which all processes share. A run that does not name the file writes nothing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

FILE_VARIABLE = "VERL_CPU_SPANS"


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of work. `version` is that of the loaded weights, and None for other work."""

    work: str
    started_s: float
    ended_s: float
    version: int | None = None

    def within(self, started_s: float, ended_s: float) -> float:
        """Returns the span's seconds between two moments."""
        return max(0.0, min(self.ended_s, ended_s) - max(self.started_s, started_s))


@contextmanager
def recorded(work: str, version: int | None = None) -> Iterator[None]:
    started_s = time.monotonic()
    try:
        yield
    finally:
        file = os.environ.get(FILE_VARIABLE)
        if file:
            line = json.dumps(asdict(Span(work, started_s, time.monotonic(), version))) + "\n"
            with open(file, "a") as spans:  # short lines, appended at once: those of several processes do not mix
                spans.write(line)


def read_spans(file: Path) -> Sequence[Span]:
    spans = [Span(**json.loads(line)) for line in file.read_text().splitlines()]
    return sorted(spans, key=lambda span: span.started_s)
