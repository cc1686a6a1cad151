"""The schedules that a plan compares, by name.

Always true: `synchronous`, which the others are held to, is the first; of two that are as fast the one that stands
first is the simpler.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Final

from rewardflow.errors import InvalidInput
from rewardflow.flow.schedule import Stream

SYNCHRONOUS: Final = "synchronous"
SCHEDULES: Final[dict[str, tuple[Stream, int]]] = {
    SYNCHRONOUS: ("batch", 0),
    "pipeline": ("mini_batch", 0),
    "one_step": ("batch", 1),
    "pipeline_one_step": ("mini_batch", 1),
    "stream_0": ("micro_batch", 0),
    "stream_1": ("micro_batch", 1),
    "staleness_2": ("mini_batch", 2),
    "staleness_4": ("mini_batch", 4),
}
OF_THE_ORIGINAL: Final = (SYNCHRONOUS, "pipeline", "one_step", "pipeline_one_step")


def check_schedules(names: Sequence[str]) -> None:
    for name in names:
        if name not in SCHEDULES:
            close = difflib.get_close_matches(name, SCHEDULES, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(SCHEDULES)}"
            raise InvalidInput(f"there is no schedule {name!r}; {hint}")


def num_edge_steps(name: str) -> int:
    """Steps that fill the pipeline, and again as many that drain it: they say nothing of the others."""
    return SCHEDULES[name][1] + 1


def min_steps(name: str) -> int:
    return 2 * num_edge_steps(name) + 1
