"""The README and the quick start as a newcomer follows them: their files are written, their commands run in order.

Every command runs as it is written, with two exceptions. The mock judge listens on another port, so that two runs do
not meet. What installs or takes many minutes is left out and has a test of its own (`ELSEWHERE`), or is shortened by
the test that says so.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
FILE_NAME = re.compile(r"# (\w+\.\w+)\n")
PORT = "8077"
DEMO = "cli/demo/test_command.py", "test_both_runs_train_on_verdicts_of_a_judge_are_kept_and_the_outcome_adds_up"
# Blocks that are not run here, because they install and take minutes: the test that covers each of them.
ELSEWHERE = {
    "make demo\n": DEMO,
    "make demo\n. .venv/bin/activate\n": DEMO,
    "make test\n": ("test_quick_start.py", "test_what_is_not_run_here_stands_in_a_page_and_has_a_test"),  # runs us all
}


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


def follow(page: str, terminal: Terminal, shortened: Mapping[str, str] | None = None) -> list[str]:
    """Writes the files of a page and runs its shell blocks in order; returns what each of them printed.

    The block that starts a mock judge is served while the others run, as in a second terminal.
    """
    text = (ROOT / page).read_text("utf-8").replace(PORT, free_port())
    for long, short in (shortened or {}).items():
        assert long in text
        text = text.replace(long, short)
    blocks = BLOCK.findall(text)
    for kind, block in blocks:
        if kind in ("python", "yaml") and (name := FILE_NAME.match(block)):
            (terminal.folder / name[1]).write_text(block, "utf-8")
    shell = [block for kind, block in blocks if kind == "bash" and block not in ELSEWHERE]
    (serve,) = (block for block in shell if block.startswith("rewardflow mock-judge"))
    with terminal.serving(serve.strip()):
        return [terminal.run(block) for block in shell if block != serve]


def steps_trained(terminal: Terminal) -> int:
    return len((terminal.folder / "runs/digits/metrics.jsonl").read_text().splitlines())


def test_the_quick_start_leads_to_a_trained_model_its_report_and_a_plan(terminal: Terminal) -> None:
    score, train, look, go_on = follow("docs/quick_start.md", terminal)
    assert "2 scored, 0 failed" in score
    assert "$" in train
    assert (terminal.folder / "runs/digits/report.html").stat().st_size > 10_000
    assert "pipeline_one_step" in look
    assert steps_trained(terminal) == 10
    assert go_on


def test_the_readme_leads_to_verdicts_in_a_file_a_trained_model_and_its_report(terminal: Terminal) -> None:
    """Its 240 steps are shortened to 3: that a model learns in as many is what the demo's test shows."""
    score, train = follow("README.md", terminal, shortened={"steps: 240": "steps: 3"})
    assert "1 scored, 0 failed" in score
    assert orjson.loads((terminal.folder / "verdicts.jsonl").read_bytes())["score"] == 1.0
    assert "wrote runs/digits/report.html" in train
    assert steps_trained(terminal) == 3
    assert (terminal.folder / "runs/digits/report.html").stat().st_size > 10_000


def test_what_is_not_run_here_stands_in_a_page_and_has_a_test() -> None:
    pages = [(ROOT / page).read_text("utf-8") for page in ("README.md", "docs/quick_start.md")]
    shown = {block for page in pages for _, block in BLOCK.findall(page)}
    for block, (file, test) in ELSEWHERE.items():
        assert block in shown
        assert f"def {test}(" in (ROOT / "tests" / file).read_text("utf-8")
