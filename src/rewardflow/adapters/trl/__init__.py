"""Runs rewardflow inside TRL: a `GRPOTrainer` that trains on one generation while the next one is judged.

Always true: nothing of TRL is copied or patched; `contact_with_trl` lists every private name of TRL that is used, and
an unknown release of TRL in which one of them changed is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rewardflow.adapters.trl.contact_with_trl import require_trl

if TYPE_CHECKING:
    from rewardflow.adapters.trl.async_rollouts import AsyncRolloutWorker
    from rewardflow.adapters.trl.trainer import GRPOTrainer

__all__ = ["AsyncRolloutWorker", "GRPOTrainer"]


def __getattr__(name: str) -> Any:
    """Imports TRL only for what needs it, which takes seconds."""
    if name == "GRPOTrainer":
        require_trl()
        from rewardflow.adapters.trl.trainer import GRPOTrainer

        return GRPOTrainer
    if name == "AsyncRolloutWorker":
        require_trl()
        from rewardflow.adapters.trl.async_rollouts import AsyncRolloutWorker

        return AsyncRolloutWorker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
