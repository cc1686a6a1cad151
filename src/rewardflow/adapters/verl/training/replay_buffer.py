"""verl's replay buffer for trainer mode `rewardflow`, which waits for news instead of polling.

Always true: it waits for the next change on the board and never sleeps; training takes the trajectories of named
prompts, so the buffer selects and evicts nothing, and nothing in it is stale. Validation goes verl's way. Loaded by
verl only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync

from rewardflow.adapters.verl.accounting.board_actor import BoardActor
from rewardflow.adapters.verl.contact import BufferContact


class BoardReplayBuffer(BufferContact, ReplayBufferAsync):
    """Waits on `board`, which knows how far every group is."""

    def __init__(self, *, board: BoardActor, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._board = board
        self._seen = 0

    def take(self, uids: Sequence[str]) -> Any:
        """Returns the trajectories of these prompts that were generated, scored or not. The prompts are done then."""
        super().look()
        return self.batch_of_prompts("train", list(uids), dict(self.partitions["train"]))

    def prompts_by_age(self) -> list[str]:
        """Returns the stored training prompts, oldest first: those that a checkpoint restored."""
        super().look()
        ages = self.prompt_global_steps["train"]
        return sorted(ages, key=lambda uid: ages[uid])

    def is_over(self, uid: str) -> bool:
        return uid in self.finished_keys["train"] | self.failure_keys["train"]

    def look(self) -> None:
        self._seen = self._board.ask("num_changes")  # before looking, so that no change is missed
        super().look()

    def wait_before_next_look(self, partition_id: str, last_debug_time: float) -> float:
        self._board.ask("wait_for_change", self._seen)
        return last_debug_time
