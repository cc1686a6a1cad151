"""How the parts get into verl's registries, each time in a fresh process."""

from __future__ import annotations

import subprocess
import sys

FIND = "from verl.trainer.ppo.v1 import get_trainer_cls; print('found', get_trainer_cls({name!r}).__name__)"


def python(*lines: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", "\n".join(lines)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)


def test_the_trainer_may_be_imported_before_anything_of_verl() -> None:
    first = "import rewardflow.adapters.verl.training.trainer"
    assert "found RewardflowTrainer" in python(first, FIND.format(name="rewardflow")).stdout


def test_a_part_that_cannot_be_registered_leaves_verls_own_trainers_alone_and_is_named() -> None:
    broken = "import sys; sys.modules['rewardflow.adapters.verl.training.trainer'] = None"
    process = python(broken, FIND.format(name="sync"))
    assert "found PPOTrainerSync" in process.stdout
    assert "rewardflow.adapters.verl.training.trainer cannot be registered in this verl" in process.stderr
