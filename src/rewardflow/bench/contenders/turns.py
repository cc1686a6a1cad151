"""The contender's side of the protocol of turns: it computes on "go" and reports how long that took.

Always true: time counts from "go" to the end of the round's last step, and nothing else is measured then; output of
libraries goes to standard error, so that standard output has one JSON object a line and nothing else.

    contender                         `bench.trainer`
    {"missing": "a package"}    ->                              and it ends; or
    {"ready": {...}}            ->                              after the steps that do not count
                                <-    go
    {"turn": {...}}             ->                              `rounds` times, each after a "go"
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from rewardflow.bench.contenders.workload import Workload

GO = "go"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Seconds of one step by kind of work, as far as the contender can measure; the rest is everything else."""

    generate_s: float = 0.0
    log_probs_s: float = 0.0
    update_s: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            generate_s=self.generate_s + other.generate_s,
            log_probs_s=self.log_probs_s + other.log_probs_s,
            update_s=self.update_s + other.update_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One round: all of its steps together. `cpu_s` and `peak_mb` are the process's; the peak is since its start."""

    steps: int
    wall_s: float
    cpu_s: float
    spent: Spent
    peak_mb: float

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> Turn:
        return cls(**{**written, "spent": Spent(**written["spent"])})


@dataclass(slots=True)
class Turns:
    """Waits for turns. The contender calls `stepped` after every step; it returns when the next step may begin."""

    workload: Workload
    words: IO[str]
    commands: IO[str]
    packages: Sequence[str]
    _num_steps: int = 0
    _since_s: float = 0.0
    _cpu_since_s: float = 0.0
    _spent: Spent = field(default_factory=Spent)

    def stepped(self, spent: Spent) -> None:
        now_s, cpu_now_s = time.perf_counter(), time.process_time()
        self._num_steps += 1
        self._spent += spent
        counted = self._num_steps - self.workload.warmup_steps
        if counted == 0:
            self.say({"ready": {"versions": _versions(self.packages)}})
        elif counted > 0 and counted % self.workload.steps_per_round == 0:
            turn = Turn(
                steps=self.workload.steps_per_round,
                wall_s=now_s - self._since_s,
                cpu_s=cpu_now_s - self._cpu_since_s,
                spent=self._spent,
                peak_mb=_peak_mb(),
            )
            self.say({"turn": asdict(turn)})
        else:
            return
        if self._num_steps < self.workload.total_steps:
            self._wait_to_go()

    def _wait_to_go(self) -> None:
        if self.commands.readline().strip() != GO:
            sys.exit(0)  # the benchmark has ended
        self._spent = Spent()
        self._since_s, self._cpu_since_s = time.perf_counter(), time.process_time()

    def say(self, word: Mapping[str, Any]) -> None:
        self.words.write(json.dumps(word) + "\n")
        self.words.flush()


def take_part(train: Callable[[Workload, Path, Turns], None], packages: Sequence[str]) -> None:
    """The main function of a contender; its only command-line argument is the workload's folder."""
    (folder,) = map(Path, sys.argv[1:])
    workload = Workload.read(folder)
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as words:
        os.dup2(2, 1)
        turns = Turns(workload, words, sys.stdin, packages)
        missing = next((name for name in packages if importlib.util.find_spec(name) is None), None)
        if missing is None:
            train(workload, folder, turns)
        else:
            turns.say({"missing": missing})


def _versions(packages: Sequence[str]) -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in packages}


def _peak_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
