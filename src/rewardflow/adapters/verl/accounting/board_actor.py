"""Starts the actor that keeps the `GroupBoard`, and asks it.

Always true: a question ends with its answer, or with the reason why no answer will come: the agent gave up, or a
process that generates is gone with its groups. Loaded by verl only.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import ray

from rewardflow.adapters.verl.accounting.group_board import GroupBoard
from rewardflow.errors import FlowError

BOARD_KEY = "rewardflow_board"  # of verl's configuration, for the workers that generate: the actor's name


def board_of_samples() -> str:
    """Returns the name of the actor that verl's own modes use, if the job has one."""
    return f"rewardflow-tally-{ray.get_runtime_context().get_job_id()}"


class BoardActor:
    """The actor, as the process that started it asks it. Other processes find it by its name."""

    def __init__(self, name: str | None = None) -> None:
        self.name = name or f"rewardflow-progress-{uuid.uuid4().hex}"
        self._actor = ray.remote(GroupBoard).options(name=self.name, num_cpus=0).remote()
        self._lifelines: list[Any] = []

    def depend_on(self, lifelines: Sequence[Any]) -> None:
        """Ends every question when one of these answers comes: they come only when a worker dies."""
        self._lifelines = list(lifelines)

    def ask(self, method: str, *args: Any) -> Any:
        """Waits for the answer. Raises what the board raised, without Ray's wrapping: it is the run's own error."""
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
