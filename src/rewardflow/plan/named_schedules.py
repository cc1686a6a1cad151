"""Names the schedules that a plan compares.

Always true: `synchronous`, the baseline, comes first; a simpler schedule comes before a more complex one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rewardflow.errors import InvalidInput
from rewardflow.flow.schedule import Stream
from rewardflow.settings.rules import did_you_mean

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
SCHEDULES_OF_ORIGINAL: Final = (SYNCHRONOUS, "pipeline", "one_step", "pipeline_one_step")


def check_schedules(names: Sequence[str]) -> None:
    for name in names:
        if name not in SCHEDULES:
            hint = did_you_mean(name, SCHEDULES, otherwise=f"there are {', '.join(SCHEDULES)}")
            raise InvalidInput(f"there is no schedule {name!r}; {hint}")


def num_edge_steps(name: str) -> int:
    """Returns how many steps fill the pipeline; as many drain it. Neither is typical of the other steps."""
    return SCHEDULES[name][1] + 1


def min_steps(name: str) -> int:
    return 2 * num_edge_steps(name) + 1
