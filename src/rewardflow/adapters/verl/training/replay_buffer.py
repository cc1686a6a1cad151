"""verl's replay buffer for trainer mode `rewardflow`: told, instead of looking again.

Always true: it waits for the next change of progress and never sleeps; training takes the trajectories of named
prompts, so nothing is selected, evicted or stale here. Validation goes verl's way. Loaded by verl only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync

from rewardflow.adapters.verl.training.board_actor import Board


class ToldReplayBuffer(ReplayBufferAsync):
    """`board` knows the progress."""

    def __init__(self, *, board: Board, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._board = board
        self._seen = 0

    def take(self, uids: Sequence[str]) -> Any:
        """The trajectories of these prompts that were generated, scored or not; the prompts themselves are done."""
        super()._sync_metadata_from_transfer_queue()
        return self._materialize_batch("train", list(uids), dict(self.partitions["train"]))

    def prompts_by_age(self) -> list[str]:
        """Training prompts that are stored, oldest first: those that a checkpoint brought back."""
        super()._sync_metadata_from_transfer_queue()
        ages = self.prompt_global_steps["train"]
        return sorted(ages, key=lambda uid: ages[uid])

    def is_over(self, uid: str) -> bool:
        return uid in self.finished_keys["train"] | self.failure_keys["train"]

    def _sync_metadata_from_transfer_queue(self) -> None:
        self._seen = self._board.ask("num_changes")  # before looking, so that no change is missed
        super()._sync_metadata_from_transfer_queue()

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        self._board.ask("wait_for_change", self._seen)
        return last_debug_time
