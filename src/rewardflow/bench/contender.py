"""Runs a contender, another training program, in its own process, which computes when it is its turn.

Always true: every contender has one thread and no network; it finds this package without the rest of this environment,
so that it uses its own libraries; leaving the block ends the process. If it dies, the error quotes its standard error.
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
from rewardflow.policy.cpu_instructions import avoid_undescribed_amx

_END_S = 30.0  # to exit, once it has finished its work
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


class ContenderFailed(RewardflowError):
    """A contender could not start or did not finish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A module of `bench.contenders` and the interpreter that runs it, which has the contender's library."""

    name: str
    module: str
    python: str = sys.executable
    how_to_install: str = ""


class Contender:
    """A running program. Call `prepare` before the first turn: it is not measured."""

    def __init__(self, program: Program, process: subprocess.Popen[str], errors: IO[str]) -> None:
        self.program = program
        self._process = process
        self._errors = errors
        self.versions: Mapping[str, str] = {}

    def prepare(self) -> None:
        """Waits until the program has loaded everything and taken its warm-up steps."""
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
        with contextlib.suppress(BrokenPipeError):  # the next read reports the dead process
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
    """Starts a program on the workload in `folder`."""
    command = (program.python, "-m", f"rewardflow.bench.contenders.{program.module}", str(folder))
    with tempfile.TemporaryDirectory() as alone, tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        (Path(alone) / "rewardflow").symlink_to(Path(rewardflow.__file__).parent, target_is_directory=True)
        with _process(command, Path(alone), errors) as process:
            try:
                yield Contender(program, process, errors)
            finally:
                _end(process)


def _process(command: Sequence[str], path: Path, errors: IO[str]) -> subprocess.Popen[str]:
    avoid_undescribed_amx()
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
    """Closes the process's standard input, which ends it, and waits for it; kills it after `_END_S`."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
