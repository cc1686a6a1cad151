"""The quick start as a newcomer follows it: its files are written, its commands run in order, and each does its work.

The commands that install are left out; the mock judge listens on another port, so that two runs do not meet.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parent.parent / "docs" / "quick_start.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
FILE_NAME = re.compile(r"# (\w+\.\w+)\n")
PORT = "8077"


@dataclass(frozen=True)
class Terminal:
    """A shell in a folder, with the command `rewardflow`."""

    folder: Path
    environment: dict[str, str]

    def run(self, commands: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @contextlib.contextmanager
    def serving(self, command: str) -> Iterator[None]:
        """A server that says where it listens when it does."""
        with subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as server:
            try:
                assert server.stdout is not None
                first = server.stdout.readline()
                assert "listens" in first, first + server.stdout.read()
                yield
            finally:
                server.terminate()


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "rewardflow").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rewardflow "$@"\n')
    (commands / "rewardflow").chmod(0o755)
    folder = tmp_path / "work"
    folder.mkdir()
    environment = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    return Terminal(folder, environment)


def free_port() -> str:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return str(listening.getsockname()[1])


def test_the_quick_start_leads_to_a_trained_model_its_report_and_a_plan(terminal: Terminal) -> None:
    page = PAGE.read_text("utf-8").replace(PORT, free_port())
    blocks = BLOCK.findall(page)
    for kind, text in blocks:
        if kind in ("python", "yaml") and (name := FILE_NAME.match(text)):
            (terminal.folder / name[1]).write_text(text, "utf-8")
    shell = [text for kind, text in blocks if kind == "bash" and "make demo" not in text]
    (serve,) = (text for text in shell if text.startswith("rewardflow mock-judge"))
    said = []
    with terminal.serving(serve.strip()):
        for commands in shell:
            if commands != serve:
                said.append(terminal.run(commands))
    score, train, look, go_on = said
    assert "2 scored, 0 failed" in score
    assert "$" in train
    assert (terminal.folder / "runs/digits/report.html").stat().st_size > 10_000
    assert "pipeline_one_step" in look
    assert len((terminal.folder / "runs/digits/metrics.jsonl").read_text().splitlines()) == 10
    assert go_on
