"""Reads the devices' work during a few steps from devices.jsonl.

Always true: all returned pieces are of one session, the last one with work of these steps: a resumed run may have
another clock, and repeats the work after its checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardflow.drawing.timeline import Lane, Span
from rewardflow.report.line_search import lines_of_steps

_CLOCK_WENT_BACK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One piece of work, or one time of waiting, which belongs to no step."""

    device: str
    kind: str
    step: int | None
    started_s: float
    ended_s: float


def read_device_log(path: Path, steps: Collection[int], *, open_together: int) -> list[Piece]:
    """Returns the pieces of these steps and of the steps that were open at the same time."""
    near = range(min(steps) - 1, max(steps) + open_together + 1) if steps else range(0)
    found = lines_of_steps(path, near, open_together=open_together, also=b'"DeviceIdled"')
    sessions: list[list[Piece]] = [[]]
    last_s = float("-inf")
    for line in found.lines:
        piece = _piece(line)
        if piece is None:
            continue
        if piece.ended_s < last_s - _CLOCK_WENT_BACK_S:
            sessions.append([])
        last_s = piece.ended_s
        sessions[-1].append(piece)
    having = [session for session in sessions if any(piece.step in steps for piece in session)]
    return having[-1] if having else []


def lanes_between(pieces: Sequence[Piece], started_s: float, ended_s: float) -> tuple[Lane, ...]:
    """Returns a lane for each device that worked in this interval."""
    by_device: dict[str, list[Span]] = {}
    for piece in pieces:
        if piece.started_s < ended_s and piece.ended_s > started_s:
            span = Span(
                started_s=piece.started_s,
                ended_s=piece.ended_s,
                kind=piece.kind,
                detail="" if piece.step is None else f"step {piece.step}",
            )
            by_device.setdefault(piece.device, []).append(span)
    return tuple(Lane(name=device, spans=tuple(spans)) for device, spans in sorted(by_device.items()))


def _piece(line: Mapping[str, Any]) -> Piece | None:
    is_work = line.get("event") == "DeviceWorked"
    kind = line.get("work" if is_work else "cause")
    started_s, ended_s, step = line.get("started_s"), line.get("at_s"), line.get("step")
    if not isinstance(started_s, int | float) or not isinstance(ended_s, int | float) or not isinstance(kind, str):
        return None
    return Piece(
        device=str(line.get("device", "device")),
        kind=kind,
        step=step if is_work and isinstance(step, int) else None,
        started_s=float(started_s),
        ended_s=float(ended_s),
    )
