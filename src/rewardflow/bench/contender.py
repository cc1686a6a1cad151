"""Another program in a process of its own, which computes in turns.

Always true: one thread and no network for everybody; the package is found by itself, without the rest of this
environment, so that a contender's libraries are those of its own; leaving the block ends the process. What it wrote to
standard error explains a death.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import rewardflow
from rewardflow.bench.contenders.turns import GO, Turn
from rewardflow.errors import RewardflowError

_END_S = 30.0  # for a process that has nothing left to do
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


class ContenderFailed(RewardflowError):
    """It could not take part, or not to the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """`module` of `bench.contenders`, run by an interpreter that has its library."""

    name: str
    module: str
    python: str = sys.executable
    how_to_install: str = ""


class Contender:
    """A running program. `prepare` comes before the first turn, because it is not measured."""

    def __init__(self, program: Program, process: subprocess.Popen[str], errors: IO[str]) -> None:
        self.program = program
        self._process = process
        self._errors = errors
        self.versions: Mapping[str, str] = {}

    def prepare(self) -> None:
        """Wait until it has loaded everything and taken the steps that do not count."""
        word = self._hear()
        if "missing" in word:
            raise ContenderFailed(
                f"{self.program.python} has no {word['missing']}; {self.program.how_to_install}".rstrip("; ")
            )
        self.versions = word["ready"]["versions"]

    def take_turn(self) -> Turn:
        self._say(GO)
        return Turn.from_json(self._hear()["turn"])

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # what became of it is heard next
            self._process.stdin.write(word + "\n")
            self._process.stdin.flush()

    def _hear(self) -> Mapping[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ContenderFailed(f"{self.program.name} ended with {self._process.wait()}: {self._last_error()}")
        word: Mapping[str, Any] = json.loads(line)
        return word

    def _last_error(self) -> str:
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        return next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "it said nothing")


@contextlib.contextmanager
def running(program: Program, folder: Path) -> Iterator[Contender]:
    """`folder` holds the workload."""
    command = (program.python, "-m", f"rewardflow.bench.contenders.{program.module}", str(folder))
    with tempfile.TemporaryDirectory() as alone, tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        (Path(alone) / "rewardflow").symlink_to(Path(rewardflow.__file__).parent, target_is_directory=True)
        with _process(command, Path(alone), errors) as process:
            try:
                yield Contender(program, process, errors)
            finally:
                _end(process)


def _process(command: Sequence[str], path: Path, errors: IO[str]) -> subprocess.Popen[str]:
    inherited = os.environ.get("PYTHONPATH")
    environment = {
        **os.environ,
        **_ENVIRONMENT,
        "PYTHONPATH": os.pathsep.join([str(path), *([inherited] if inherited else [])]),
    }
    try:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        )
    except OSError as error:
        raise ContenderFailed(f"{command[0]} cannot be run: {error.strerror}") from error


def _end(process: subprocess.Popen[str]) -> None:
    """It ends by itself when it has taken its turns, or when nobody will tell it to go on."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
