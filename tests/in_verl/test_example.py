"""The command line of the example for verl, against the installed verl's own configuration. Nothing is started."""

from __future__ import annotations

import subprocess
from pathlib import Path

from rewardflow.adapters.verl.launch.composition import check, completed, defaults_of
from rewardflow.adapters.verl.launch.translation import translate

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "verl"


def words_of_the_script(folder: Path) -> list[str]:
    """Runs the script with a command `rewardflow` that only prints its arguments."""
    told = folder / "rewardflow"
    told.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    told.chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run([FOLDER / "train.sh"], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_the_examples_settings_all_have_their_place_and_fit_each_other(tmp_path: Path) -> None:
    command, *words = words_of_the_script(tmp_path)
    assert command == "verl"
    line, config = completed(translate(words))
    settings = check(line, config, defaults_of(line))
    assert settings.reward == f"{FOLDER / 'reward.py'}:compute_score"
    assert (settings.stream, settings.max_staleness) == ("mini_batch", 1)
    assert settings.agent_options["max_concurrency"] == 256
