"""Lets the ranks of a trainer use one agent: all send their rollouts to rank 0, and get their verdicts from it.

Always true: every rank takes part in every exchange, in the same order; an error on rank 0 reaches every rank, so that
none waits for a message that never comes. torch is not imported here: a process of several ranks has loaded it before.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Sequence
from typing import Any

_PATIENCE = datetime.timedelta(days=7)  # how long ranks wait for verdicts; the agent's own limits end calls earlier


class TrainerRanks:
    """The ranks of torch's process group, with a group of their own on CPU.

    Verdicts may take longer than the time after which a group on GPUs gives up, and must not hold up its traffic.
    """

    def __init__(self, distributed: Any) -> None:
        self._distributed = distributed
        self.rank: int = distributed.get_rank()
        self.size: int = distributed.get_world_size()
        self._group = distributed.new_group(backend="gloo", timeout=_PATIENCE)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all ranks, in their order, on rank 0; elsewhere an empty list."""
        values: list[Any] | None = [None] * self.size if self.is_first else None
        self._distributed.gather_object(value, values, dst=0, group=self._group)
        return values or []

    def scatter(self, values: Sequence[Any] | None) -> Any:
        """Gives each rank its value; rank 0 passes one for each rank, the others pass None."""
        own: list[Any] = [None]
        source = list(values) if values is not None else None
        self._distributed.scatter_object_list(own, source, src=0, group=self._group)
        return own[0]


def trainer_ranks() -> TrainerRanks | None:
    """Returns the ranks of this process's trainer; None if it has one rank, or no process group."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return TrainerRanks(distributed) if distributed.get_world_size() > 1 else None
