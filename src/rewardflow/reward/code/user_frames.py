"""Finds the place in the user's code at which an exception was raised.

Always true: a place names the deepest frame of the user's own code: no frame of rewardflow, of the standard library or
of an installed package, unless the reward itself is in one. Nothing here raises, and no text is longer than its bound.

`asyncio.TaskGroup` wraps the errors of its tasks in a group, which stands for the first of them (`first_cause`).

An exception of a reward process has no frames here. It carries the place and the trace that were found there
(`Origin`). This module imports little, because every new process loads it.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from dataclasses import dataclass
from typing import Final

MAX_TRACE_CHARS: Final = 8_000
_MAX_PLACE_CHARS: Final = 300
_MAX_CAUSES: Final = 8
_ATTRIBUTE: Final = "__rewardflow_origin__"
_OURS: Final = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_LIBRARIES: Final = tuple(
    folder + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib") if (folder := sysconfig.get_path(name))
)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an exception was raised: `reward.py, line 12, in compute_score`, and the user's frames on the way there."""

    place: str = ""
    trace: str = ""

    @classmethod
    def bounded(cls, place: str, trace: str) -> Origin:
        trace = trace if len(trace) <= MAX_TRACE_CHARS else f"...{trace[3 - MAX_TRACE_CHARS :]}"
        return cls(place[:_MAX_PLACE_CHARS], trace)


NOWHERE: Final = Origin()


def first_cause(error: BaseException) -> BaseException:
    """Returns the first exception of a group, which ended the other tasks; any other exception as it is."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def origin_of(error: BaseException) -> Origin:
    """Returns the origin of an exception that was caught; empty if none of its frames is outside rewardflow."""
    told = getattr(error, _ATTRIBUTE, None)
    if isinstance(told, Origin):
        return told
    try:
        return _origin(error)
    except Exception:  # a traceback that the user's code made by itself, or a text that raises
        return NOWHERE


def place_of_code(function: object) -> str:
    """Returns where a function is defined, as a place; empty if that cannot be told, as for functions in C."""
    for _ in range(_MAX_CAUSES):  # a bound method, a decorated function, a callable object
        function = getattr(function, "__func__", None) or getattr(function, "__wrapped__", None) or function
        code = getattr(function, "__code__", None)
        if code is not None:
            return f"{os.path.basename(code.co_filename)}, line {code.co_firstlineno}, in {code.co_name}"
        function = getattr(function, "func", None) or type(function).__call__
    return ""


def give_origin(error: BaseException, origin: Origin) -> None:
    """Lets an exception that was rebuilt carry the origin of the one that was raised."""
    setattr(error, _ATTRIBUTE, origin)


def _origin(error: BaseException) -> Origin:
    chain = [error]
    while len(chain) < _MAX_CAUSES and (before := chain[-1].__cause__ or _context_of(chain[-1])) not in (None, *chain):
        assert before is not None
        chain.append(before)
    place, traces = "", []
    for one in chain:
        frames = _users(traceback.extract_tb(one.__traceback__))
        if frames and not place:
            frame = frames[-1]
            place = f"{os.path.basename(frame.filename)}, line {frame.lineno}, in {frame.name}"
        if frames:
            traces.append("".join(traceback.format_list(frames)) + "".join(traceback.format_exception_only(one)))
    return Origin.bounded(place, "\n".join(reversed(traces)))


def _context_of(error: BaseException) -> BaseException | None:
    return None if error.__suppress_context__ else error.__context__


def _users(frames: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """Leaves out frames of rewardflow, then those of libraries, unless nothing but these is left."""
    others = [frame for frame in frames if not frame.filename.startswith(_OURS)]
    own = [frame for frame in others if not _is_library(frame.filename)]
    return own or others[:1]


def _is_library(filename: str) -> bool:
    if filename.startswith("<"):
        return not filename.startswith(("<ipython", "<stdin", "<string"))
    here = os.path.abspath(filename)
    return here.startswith(_LIBRARIES) or here.startswith(os.path.join(sys.base_prefix, "lib") + os.sep)
