"""Finds what an export reads and where it may write, before torch is loaded.

Always true: a checkpoint cannot allow code that comes with a model or from the hub: only the caller can. What its
manifest says of the policy has the types that a run file's settings have. A target that holds anything is refused.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rewardflow.checkpoint.manifest import MANIFEST_FILE, Checkpoint, read_manifest
from rewardflow.checkpoint.store import CheckpointStore
from rewardflow.errors import CheckpointError, InvalidInput
from rewardflow.observe.run_directory import CHECKPOINTS_FOLDER
from rewardflow.settings.run_settings import PolicySettings
from rewardflow.settings.typed_values import ValueFitter

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
    asked_for = _code_asked_for(named.pop(_TRUST, False), named.get("model"), named.get("attention"))
    if asked_for is not None and not trust_remote_code:
        raise InvalidInput(
            f"a checkpoint cannot allow code that comes with a model: its run had {asked_for[0]}, so add "
            "policy.trust_remote_code=true (eval) or --trust-remote-code (export) if you trust the code of "
            f"{asked_for[1]!r:.200}, got {checkpoint.path}"
        )
    try:
        fitted: PolicySettings = ValueFitter(checkpoint.path).build(PolicySettings, named)
    except InvalidInput as error:
        raise CheckpointError(f"{checkpoint.path} does not say of which policy it is: {error}") from error
    return replace(fitted, trust_remote_code=trust_remote_code)


def _code_asked_for(trusts: object, model: object, attention: object) -> tuple[str, object] | None:
    """Returns the setting that runs the code of others, and whose code that is; None if no setting does."""
    if trusts:
        return "policy.trust_remote_code", model
    if isinstance(attention, str) and "/" in attention:  # transformers takes it for a kernel on the hub, and runs it
        return "policy.attention", attention
    return None


def check_target(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InvalidInput(f"a directory to export to must be new or empty, got {target}")
