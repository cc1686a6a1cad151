"""What of a run changes from step to step: taken at a boundary, put back where a run goes on.

Always true: `take` after `put_back` gives what was put back; whoever computes on the device holds still for both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rewardflow.checkpoint.manifest import Checkpoint
from rewardflow.data.cursor import PromptCursor
from rewardflow.data.prompt_set import PromptSet
from rewardflow.device_thread import DeviceThread
from rewardflow.flow.parts import Parts
from rewardflow.flow.records import Boundary

if TYPE_CHECKING:
    from rewardflow.checkpoint.snapshot import Snapshot
    from rewardflow.train.torch_trainer import TorchTrainer


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The parts of a run that remember something."""

    trainer: TorchTrainer
    prompts: PromptCursor
    prompt_set: PromptSet
    parts: Parts
    thread: DeviceThread

    async def take(self, boundary: Boundary) -> Snapshot:
        from rewardflow.checkpoint.snapshot import take_snapshot

        trainer, progress = self.trainer, self._progress()
        return await self.thread.run(
            lambda: take_snapshot(
                boundary, model=trainer.model, optimizer=trainer.optimizer, progress=progress, critic=trainer.critic
            )
        )

    async def put_back(self, checkpoint: Checkpoint) -> Boundary:
        """The boundary is where the flow starts."""
        from rewardflow.checkpoint.rollout_file import read_rollouts
        from rewardflow.checkpoint.snapshot import read_progress

        self._set_progress(read_progress(checkpoint.path))
        await self.thread.run(lambda: self._put_back_weights(checkpoint))
        open_steps = await self.thread.run(
            lambda: read_rollouts(checkpoint.path, lambda uid: self.prompt_set[int(uid)])
        )
        return Boundary(next_step=checkpoint.step, open_steps=open_steps)

    def _put_back_weights(self, checkpoint: Checkpoint) -> None:
        from rewardflow.checkpoint.snapshot import put_back_weights

        trainer = self.trainer
        put_back_weights(checkpoint.path, model=trainer.model, optimizer=trainer.optimizer, critic=trainer.critic)
        trainer.rest()

    def _progress(self) -> dict[str, Any]:
        from rewardflow.algo.reward_kl import KlInReward

        advantages = self.parts.advantages
        coef = advantages.controller.coef if isinstance(advantages, KlInReward) else None
        return {"cursor": self.prompts.state(), "reward_kl_coef": coef}

    def _set_progress(self, progress: dict[str, Any]) -> None:
        from rewardflow.algo.reward_kl import KlInReward

        self.prompts.restore(progress["cursor"])
        advantages = self.parts.advantages
        if isinstance(advantages, KlInReward):
            advantages.controller = replace(advantages.controller, coef=progress["reward_kl_coef"])
