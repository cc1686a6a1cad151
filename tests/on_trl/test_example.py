"""The example for TRL, as its README runs it, with a model of a few thousand weights."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "trl" / "train.py"


def test_the_example_trains_and_keeps_every_verdict(model: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--model", model, "--steps", "2", "--out", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with contextlib.closing(sqlite3.connect(tmp_path / "run" / "verdicts.db")) as journal:
        assert journal.execute("select count(*) from verdicts").fetchone()[0] == 2 * 16
