"""Finds what an export reads and where it may write, before torch is loaded.

Always true: a checkpoint cannot allow code that comes with a model: only the caller can. A target that holds anything
is refused.
"""

from __future__ import annotations

from pathlib import Path

from rewardflow.checkpoint.manifest import MANIFEST_FILE, Checkpoint, read_manifest
from rewardflow.checkpoint.store import CheckpointStore
from rewardflow.errors import CheckpointError, InvalidInput
from rewardflow.observe.run_directory import CHECKPOINTS_FOLDER
from rewardflow.settings.run_settings import LoraSettings, PolicySettings

_POLICY = "policy."
_TRUST, _LORA = "trust_remote_code", "lora"


def find_checkpoint(source: Path, *, wants_best: bool = False) -> Checkpoint:
    """Returns the checkpoint in this directory, or the latest or best one of the run in it."""
    if (source / MANIFEST_FILE).is_file():
        checkpoint = read_manifest(source)
        if (problem := checkpoint.problem()) is not None:
            raise CheckpointError(f"{source} is damaged: {problem}")
        return checkpoint
    store = CheckpointStore(source / CHECKPOINTS_FOLDER)
    found = store.best() if wants_best else store.latest()
    if found is None:
        kind = "a checkpoint with a score (checkpoint.keep_best_by)" if wants_best else "an intact checkpoint"
        raise InvalidInput(f"a directory to take a model from must be a checkpoint or a run with {kind}, got {source}")
    return found


def policy_settings_of(checkpoint: Checkpoint, *, trust_remote_code: bool) -> PolicySettings:
    """Returns the policy settings of the run that wrote the checkpoint, with the caller's `trust_remote_code`."""
    named = {
        name.removeprefix(_POLICY): value for name, value in checkpoint.settings.items() if name.startswith(_POLICY)
    }
    if named.pop(_TRUST, False) and not trust_remote_code:
        raise InvalidInput(
            "a checkpoint cannot allow code that comes with a model: its run had policy.trust_remote_code, so add "
            "policy.trust_remote_code=true (eval) or --trust-remote-code (export) if you trust the code of "
            f"{named.get('model')!r:.200}, got {checkpoint.path}"
        )
    if isinstance(lora := named.pop(_LORA, None), dict):
        named[_LORA] = LoraSettings(**lora)
    try:
        return PolicySettings(**named, trust_remote_code=trust_remote_code)
    except TypeError as error:
        raise CheckpointError(f"{checkpoint.path} names settings that a policy does not have: {error}") from error


def check_target(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InvalidInput(f"a directory to export to must be new or empty, got {target}")
