"""The actor that keeps the progress, as the trainer asks it.

Always true: a question ends with its answer, or with the reason why none will come: the agent gave up, or a process
that generates is gone with its groups. Loaded by verl only.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import ray

from rewardflow.adapters.verl.training.group_board import Progress
from rewardflow.errors import FlowError


class Board:
    """Started here, and found by its name in other processes."""

    def __init__(self) -> None:
        self.name = f"rewardflow-progress-{uuid.uuid4().hex}"
        self._actor = ray.remote(Progress).options(name=self.name, num_cpus=0).remote()
        self._lifelines: list[Any] = []

    def depend_on(self, lifelines: Sequence[Any]) -> None:
        """Answers that never come while those live without whom there is no progress."""
        self._lifelines = list(lifelines)

    def ask(self, method: str, *args: Any) -> Any:
        """Wait for the answer. What the actor raises is raised as it is: it is the run's own error, and not Ray's."""
        asked = getattr(self._actor, method).remote(*args)
        (first, *_), _ = ray.wait([asked, *self._lifelines], num_returns=1)
        if first != asked:
            try:
                ray.get(first)
            except ray.exceptions.RayError as error:
                raise FlowError(f"a worker that generates is gone, and its groups with it: {error}") from error
        try:
            return ray.get(asked)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
