"""`rewardflow export`: writes the model of a run as a folder that transformers loads.

Always true: the command writes the whole folder or none of it; what it cannot export is refused before torch is loaded.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import get_args

from rewardflow.checkpoint.export_source import check_target, find_checkpoint, policy_settings_of
from rewardflow.cli.safe_text import safe
from rewardflow.policy.model_place import check_model_files
from rewardflow.runtime.prepare import check_installed
from rewardflow.settings.run_settings import Dtype


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Takes the latest checkpoint of a run (docs/resume.md), or one that is named, and writes its model and\n"
        "tokenizer in the layout of the Hugging Face hub. What the run loaded its model from must still be there."
    )
    parser.add_argument("source", metavar="RUN_DIR|CHECKPOINT", help="a run's directory, or one of its checkpoints")
    parser.add_argument("target", metavar="OUT", help="the folder to write, which must be new or empty")
    parser.add_argument(
        "--best", action="store_true", help="export the best checkpoint by checkpoint.keep_best_by, not the latest"
    )
    parser.add_argument(
        "--dtype", choices=get_args(Dtype), default="float32", help="the dtype of the weights (float32)"
    )
    parser.add_argument(
        "--only-adapters",
        action="store_true",
        help="of a run with policy.lora, write the adapters as peft reads them, not a model with them merged",
    )
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run code that comes with the model; a checkpoint cannot allow that by itself",
    )


def run(args: argparse.Namespace) -> int:
    check_installed()
    target = Path(args.target)
    check_target(target)
    checkpoint = find_checkpoint(Path(args.source), wants_best=args.best)
    check_model_files(policy_settings_of(checkpoint, trust_remote_code=args.trust_remote_code))
    from rewardflow.checkpoint.exported_model import export_policy  # loads torch

    export_policy(
        checkpoint,
        target,
        dtype=args.dtype,
        trust_remote_code=args.trust_remote_code,
        only_adapters=args.only_adapters,
    )
    what = "adapters" if args.only_adapters else "model"
    sys.stdout.write(
        f"wrote the {what} of {safe(str(checkpoint.path))}, after {checkpoint.step:,} steps, to {safe(str(target))}\n"
    )
    return 0
