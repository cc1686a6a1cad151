"""Writes the policy of a checkpoint to a folder that transformers loads: weights, configuration and tokenizer.

Always true: the folder is complete or not there; nothing that exists is overwritten. A checkpoint cannot allow code
that comes with a model: only the caller can.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import torch

from rewardflow.checkpoint.manifest import MANIFEST_FILE, Checkpoint, read_manifest
from rewardflow.checkpoint.model_state import read_state
from rewardflow.checkpoint.snapshot import STATE_FOLDER
from rewardflow.checkpoint.store import CheckpointStore
from rewardflow.errors import CheckpointError, InvalidInput
from rewardflow.observe.run_directory import CHECKPOINTS_FOLDER
from rewardflow.policy.load_policy import load_policy
from rewardflow.settings.run_settings import Dtype, PolicySettings

_POLICY = "policy."
_TRUST = "trust_remote_code"


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
    try:
        return PolicySettings(**named, trust_remote_code=trust_remote_code)
    except TypeError as error:
        raise CheckpointError(f"{checkpoint.path} names settings that a policy does not have: {error}") from error


def export_policy(
    checkpoint: Checkpoint, target: Path, *, dtype: Dtype = "float32", trust_remote_code: bool = False
) -> None:
    """Builds the model as the run built it, so the files that the run's settings name must exist."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InvalidInput(f"a directory to export to must be new or empty, got {target}")
    settings = policy_settings_of(checkpoint, trust_remote_code=trust_remote_code)
    policy = load_policy(settings, seed=checkpoint.settings["seed"])
    read_state(checkpoint.path / STATE_FOLDER, policy.model)
    model = torch.nn.Module.to(policy.model, getattr(torch, dtype))
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))  # mode 0700
    try:
        model.save_pretrained(draft)
        policy.tokenizer.save_pretrained(draft)
        if target.exists():
            target.rmdir()
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
