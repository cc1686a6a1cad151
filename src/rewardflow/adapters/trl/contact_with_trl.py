"""Names every piece of TRL's and transformers' inside that the adapter overrides or calls, with its tested fingerprint.

Always true: the adapter uses no private name of TRL that is not listed here; a release of TRL is accepted if it was
tested or if all of these pieces are as they were in the tested one. TRL is read here, and never imported.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

from rewardflow.adapters.fingerprints import changed_pieces
from rewardflow.errors import InvalidInput

TESTED = "1.16.0"
_TRAINER = "trainer/grpo_trainer.py:GRPOTrainer"
_BASE = "trainer.py:Trainer"
_LOOP = "experimental/async_grpo/async_rollout_worker.py:_AsyncRolloutLoop"

# By package, then by file and name in it.
FINGERPRINTS: Mapping[str, Mapping[str, str]] = {
    "trl": {
        f"{_TRAINER}.__init__": "e6e8ef19620b",
        f"{_TRAINER}.training_step": "6312f9d9d3ca",
        f"{_TRAINER}._prepare_inputs": "4084b6eb767b",
        f"{_TRAINER}._generate_and_score_completions": "0495f0cc5ef9",
        f"{_TRAINER}._generate": "edf2b4adf998",
        f"{_TRAINER}._get_per_token_logps_and_entropies": "ff9672b88fc8",
        f"{_TRAINER}._calculate_rewards": "64ef7ec2b331",
        f"{_TRAINER}._compute_loss": "81273920c6fd",
        f"{_TRAINER}._log_metric": "1a309a8ef373",
        f"{_TRAINER}._log_completion_extra": "519c96e35fca",
        f"{_TRAINER}._load_optimizer_and_scheduler": "b69d682c6e8c",
        f"{_LOOP}.__init__": "01bf66f21bf3",
        f"{_LOOP}._score_loop": "01b0ee6e3581",
        f"{_LOOP}._score_group": "5cd6cc29399b",
        "experimental/async_grpo/async_rollout_worker.py:AsyncRolloutWorker": "b762a0f3a0d8",
    },
    "transformers": {
        f"{_BASE}.train": "8b9c4f3e176d",
        f"{_BASE}.get_batch_samples": "ce1d3f8e633c",
        f"{_BASE}._run_epoch": "0e742f201da6",
        f"{_BASE}._save_rng_state": "7060e8a00727",
        f"{_BASE}._load_optimizer_and_scheduler": "854c6b8c0656",
    },
}


def installed_trl() -> str:
    """Returns the installed TRL's version. Without TRL, raises an error that says what to install."""
    try:
        return importlib.metadata.version("trl")
    except importlib.metadata.PackageNotFoundError:
        raise InvalidInput(f"TRL must be installed beside rewardflow: pip install trl=={TESTED}, got none") from None


def require_trl() -> None:
    """Raises `InvalidInput` if TRL is not installed."""
    installed_trl()


def changes() -> list[str]:
    """Returns the pieces that differ from the tested release, each with what happened to it."""
    return [
        f"{name}/{piece}" for name, tested in FINGERPRINTS.items() for piece in changed_pieces(_package(name), tested)
    ]


def check_trl(*, allow_untested: bool = False) -> None:
    """Refuses a release of TRL in which a piece changed that this adapter uses."""
    version = installed_trl()
    if version != TESTED and not allow_untested:
        check_release(version, changes())


def check_release(version: str, changed: Sequence[str]) -> None:
    """Raises `InvalidInput` if these pieces of a release changed; names the first."""
    if not changed:
        return
    more = f" and {len(changed) - 1} more pieces changed" if len(changed) > 1 else ""
    raise InvalidInput(
        f"rewardflow was tested inside TRL {TESTED}, got TRL {version}, where {changed[0]}{more}: install "
        f"trl=={TESTED}, or try this one with allow_untested_trl=True"
    )


def _package(name: str) -> Path:
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise InvalidInput(f"{name} must be installed beside TRL, got none")
    return Path(found.submodule_search_locations[0])
