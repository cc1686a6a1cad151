"""Writes the policy of a checkpoint to a folder that transformers loads: weights, configuration and tokenizer.

Always true: the folder is complete or not there; nothing that exists is overwritten.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from rewardflow.checkpoint.export_source import check_target, policy_settings_of
from rewardflow.checkpoint.manifest import Checkpoint
from rewardflow.checkpoint.model_state import read_state
from rewardflow.checkpoint.snapshot import STATE_FOLDER
from rewardflow.errors import InvalidInput
from rewardflow.policy.adapters import add_adapters, merge_adapters, save_adapters
from rewardflow.policy.load_policy import Policy, load_policy
from rewardflow.settings.run_settings import Dtype, PolicySettings


def read_policy(checkpoint: Checkpoint, policy: Policy, settings: PolicySettings, *, merges: bool = True) -> None:
    """Reads the checkpoint's weights into the policy that `settings` loaded; adapters are merged unless told not to."""
    if settings.lora is not None:
        add_adapters(policy.model, settings.lora, seed=checkpoint.settings["seed"])
    read_state(checkpoint.path / STATE_FOLDER, policy.model)
    if settings.lora is not None and merges:
        merge_adapters(policy.model)


def export_policy(
    checkpoint: Checkpoint,
    target: Path,
    *,
    dtype: Dtype = "float32",
    trust_remote_code: bool = False,
    only_adapters: bool = False,
) -> None:
    """Builds the model as the run built it, so the files that the run's settings name must exist.

    A model with adapters is written with them merged, or `only_adapters` in the form of peft.
    """
    check_target(target)
    settings = policy_settings_of(checkpoint, trust_remote_code=trust_remote_code)
    if only_adapters and settings.lora is None:
        raise InvalidInput(f"only a run with policy.lora has adapters to export, got {checkpoint.path}")
    policy = load_policy(replace(settings, dtype="float32"), seed=checkpoint.settings["seed"])
    read_policy(checkpoint, policy, settings, merges=not only_adapters)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))  # mode 0700
    try:
        if only_adapters:
            save_adapters(policy.model, draft, getattr(torch, dtype))
        else:
            torch.nn.Module.to(policy.model, getattr(torch, dtype)).save_pretrained(draft)
        policy.tokenizer.save_pretrained(draft)
        if target.exists():
            target.rmdir()
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
