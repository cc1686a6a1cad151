"""Writes the policy of a checkpoint to a folder that transformers loads: weights, configuration and tokenizer.

Always true: the folder is complete or not there; nothing that exists is overwritten.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import torch

from rewardflow.checkpoint.export_source import check_target, policy_settings_of
from rewardflow.checkpoint.manifest import Checkpoint
from rewardflow.checkpoint.model_state import read_state
from rewardflow.checkpoint.snapshot import STATE_FOLDER
from rewardflow.policy.load_policy import load_policy
from rewardflow.settings.run_settings import Dtype


def export_policy(
    checkpoint: Checkpoint, target: Path, *, dtype: Dtype = "float32", trust_remote_code: bool = False
) -> None:
    """Builds the model as the run built it, so the files that the run's settings name must exist."""
    check_target(target)
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
