"""Takes the state of a run at a boundary between two steps, and puts it back when the run resumes.

Always true: `take` after `put_back` gives the state that was put back; nothing computes on the device during either.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rewardflow.checkpoint.manifest import VALIDATION_FOLDER, Checkpoint
from rewardflow.data.cursor import PromptCursor
from rewardflow.data.prompt_set import PromptSet
from rewardflow.flow.flow_parts import FlowParts
from rewardflow.flow.protocols import Trainer
from rewardflow.flow.records import Boundary, SavedStep
from rewardflow.settings.run_settings import ValidationSettings

if TYPE_CHECKING:
    from rewardflow.checkpoint.snapshot import Snapshot, Writable

logger = logging.getLogger(__name__)

_SAMPLING = ("rollouts", "temperature", "top_p", "top_k", "max_response_tokens")  # of a validation


class CheckpointedTrainer(Trainer, Protocol):
    """A trainer whose weights, optimizer state and random numbers can be saved: in this process, or on ranks."""

    async def take(self) -> Writable:
        """Copies the state. Any thread may call the copy's `write`."""

    async def put_back(self, folder: Path) -> None:
        """Loads the state that was written to this directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The parts of a run that have state."""

    trainer: CheckpointedTrainer
    prompts: PromptCursor
    prompt_set: PromptSet
    parts: FlowParts
    validation_set: PromptSet | None = None
    validation: ValidationSettings | None = None

    async def take(self, boundary: Boundary) -> Snapshot:
        from rewardflow.checkpoint.snapshot import Snapshot

        progress = self._progress()
        return Snapshot(boundary=boundary, progress=progress, weights=await self.trainer.take())

    async def put_back(self, checkpoint: Checkpoint) -> Boundary:
        """Loads the checkpoint, and returns the boundary at which the flow starts."""
        from rewardflow.checkpoint.open_rollouts import read_rollouts
        from rewardflow.checkpoint.snapshot import read_progress

        progress = read_progress(checkpoint.path)
        self._set_progress(progress)
        await self.trainer.put_back(checkpoint.path)
        open_steps = await asyncio.to_thread(
            lambda: read_rollouts(checkpoint.path, lambda uid: self.prompt_set[int(uid)])
        )
        validations = await asyncio.to_thread(self._read_validations, checkpoint, progress)
        return Boundary(next_step=checkpoint.step, open_steps=open_steps, validations=validations)

    def _read_validations(self, checkpoint: Checkpoint, progress: Mapping[str, Any]) -> tuple[SavedStep, ...]:
        """Returns the validations that were open when the run was saved; none if the validation's settings changed."""
        from rewardflow.checkpoint.open_rollouts import read_rollouts

        folder, prompt_set = checkpoint.path / VALIDATION_FOLDER, self.validation_set
        if not folder.is_dir():
            return ()
        if prompt_set is None or progress.get("validation") != self._validation_identity():
            logger.warning("the validation has changed since %s: what it had not finished is left out", checkpoint.path)
            return ()
        return read_rollouts(folder, lambda uid: prompt_set[int(uid)])

    def _validation_identity(self) -> dict[str, Any] | None:
        """Returns the settings that must be the same for an open validation to continue."""
        plan = self.parts.validation
        if plan is None or self.validation_set is None:
            return None
        sampling = {name: getattr(self.validation, name) for name in _SAMPLING}
        return {**self.validation_set.fingerprint, "prompts": len(plan.prompts), **sampling}

    def _progress(self) -> dict[str, Any]:
        from rewardflow.algo.reward_kl import KlInReward

        advantages = self.parts.advantages
        coef = advantages.controller.coef if isinstance(advantages, KlInReward) else None
        identity = self._validation_identity()
        return {"cursor": self.prompts.state(), "reward_kl_coef": coef, "validation": identity}

    def _set_progress(self, progress: dict[str, Any]) -> None:
        from rewardflow.algo.reward_kl import KlInReward

        self.prompts.restore(progress["cursor"])
        advantages = self.parts.advantages
        if isinstance(advantages, KlInReward):
            advantages.controller = replace(advantages.controller, coef=progress["reward_kl_coef"])
