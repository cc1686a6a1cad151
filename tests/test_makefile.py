"""The Makefile's installation for a newcomer: what a terminal shows meanwhile, and what happens if pip fails."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SAID = "Collecting a-large-package"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone whose pip says what it collects, and goes on when somebody has read it, if PIP_WAITS is set.

    It ends as the variable PIP_ENDS says.
    """
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    waits = "for try in $PIP_WAITS; do test -e was_read && break; sleep 0.1; done"
    python.write_text(f"#!/bin/sh\necho {SAID}\n{waits}\necho 'ERROR: no room' >&2\nexit $PIP_ENDS\n")
    python.chmod(0o755)
    return tmp_path


def install(clone: Path, *, pip_ends: int, on_terminal: bool) -> tuple[int, str]:
    ours, theirs = pty.openpty() if on_terminal else os.pipe()
    with open(ours, "rb", buffering=0) as reading:
        process = subprocess.Popen(
            ["make", ".venv/.core"],
            cwd=clone,
            env={
                # The tests themselves may run under make, which would then name its folders.
                **{name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")},
                "PIP_ENDS": str(pip_ends),
                "PIP_WAITS": " ".join(map(str, range(300))) if on_terminal else "",
            },
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        said = b""
        try:
            while part := reading.read(4096):
                said += part
                if SAID.encode() in said and b"ERROR" not in said:
                    (clone / "was_read").touch()
        except OSError:  # how a terminal says that its last writer went away
            pass
        return process.wait(), said.decode()


@pytest.mark.parametrize("on_terminal", [True, False])
def test_while_make_demo_installs_a_terminal_shows_what_pip_is_doing(clone: Path, on_terminal: bool) -> None:
    code, said = install(clone, pip_ends=0, on_terminal=on_terminal)
    assert code == 0
    assert said.startswith("installing rewardflow")
    assert (SAID in said) == (clone / "was_read").exists() == on_terminal
    assert (clone / ".venv" / ".core").read_text().strip() == str(clone.resolve())


def test_an_installation_that_fails_shows_the_error_and_is_not_taken_for_done(clone: Path) -> None:
    code, said = install(clone, pip_ends=1, on_terminal=False)
    assert code != 0
    assert "ERROR: no room" in said
    assert not (clone / ".venv" / ".core").exists()
