"""The program itself: Ctrl-C while modules load, and when SIGINT was ignored."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"
IGNORES_CTRL_C = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")  # as shells do for jobs in the background


def test_ctrl_c_in_the_first_second_is_one_line(tmp_path: Path) -> None:
    """A module that takes for ever to load, as torch or a slow disk may."""
    (tmp_path / "argparse.py").write_text("import time\nprint('loading', flush=True)\ntime.sleep(3600)\n")
    process = subprocess.Popen(
        [sys.executable, "-c", "from rewardflow.cli.entry import main; main()", "train"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{SOURCE}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "loading\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "rewardflow: interrupted\n")


def test_the_tests_pass_in_the_background_where_a_shell_ignores_ctrl_c() -> None:
    """The test above, as `nohup make test &` would run it."""
    name = f"{__file__}::{test_ctrl_c_in_the_first_second_is_one_line.__name__}"
    command = [*IGNORES_CTRL_C, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=SOURCE.parent, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
