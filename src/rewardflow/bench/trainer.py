"""`rewardflow bench trainer`: measures tokens a second of generation and training beside TRL and verl.

Every contender trains the same model on the same prompts, with as many responses of the same length, in its own
process. They take turns of a few steps, round after round, so that a busy moment of the machine affects all.

Always true: one contender computes at a time; every figure is the median over the same rounds; a contender that is not
installed is reported as not measured, and nothing takes its place.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rewardflow.bench.benchmark_row import BenchmarkRow
from rewardflow.bench.contender import Contender, ContenderFailed, Program, running
from rewardflow.bench.contenders.turns import Turn
from rewardflow.bench.contenders.workload import Workload

OURS, TRL, VERL = "rewardflow", "trl", "verl"
STEP_BAR = ">= 1.5"
UPDATE_BAR = ">= 1.0"

QUICK = Workload(rounds=3, steps_per_round=2)
_REQUIREMENTS = Path(__file__).parent / "contenders"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerFigures:
    """The turns of one contender. Without turns it was not measured, and `why_not` says why."""

    name: str
    workload: Workload
    turns: Sequence[Turn] = ()
    versions: Mapping[str, str] | None = None
    why_not: str = ""

    @property
    def step_s(self) -> float:
        return median(turn.wall_s / turn.steps for turn in self.turns)

    @property
    def generate_s(self) -> float:
        return median(turn.spent.generate_s / turn.steps for turn in self.turns)

    @property
    def train_s(self) -> float:
        """Everything but generation: rewards, advantages, log-probs, loss, update and the time between them."""
        return median((turn.wall_s - turn.spent.generate_s) / turn.steps for turn in self.turns)

    @property
    def update_s(self) -> float:
        """Forward, backward and optimizer alone, if the contender measures them separately."""
        return median(turn.spent.update_s / turn.steps for turn in self.turns)

    @property
    def peak_mb(self) -> float:
        return self.turns[-1].peak_mb

    def tokens_per_s(self, seconds: float) -> float | None:
        return self.workload.tokens_per_step / seconds if seconds > 0 else None

    def to_json(self) -> dict[str, Any]:
        if not self.turns:
            return {"name": self.name, "is_measured": False, "why_not": self.why_not}
        return {
            "name": self.name,
            "is_measured": True,
            "versions": dict(self.versions or {}),
            "step_s": self.step_s,
            "cpu_s": median(turn.cpu_s / turn.steps for turn in self.turns),
            "step_tokens_per_s": self.tokens_per_s(self.step_s),
            "generate_tokens_per_s": self.tokens_per_s(self.generate_s),
            "train_tokens_per_s": self.tokens_per_s(self.train_s),
            "update_tokens_per_s": self.tokens_per_s(self.update_s),
            "peak_mb": self.peak_mb,
            "turns": [asdict(turn) for turn in self.turns],
        }


def programs(*, trl_python: str | None = None, verl_python: str | None = None) -> tuple[Program, ...]:
    """Returns the contenders, ours first. Others run in this environment unless an interpreter is given."""
    return (
        Program(name=OURS, module="ours"),
        _other(TRL, "trl_grpo", trl_python),
        _other(VERL, "verl_fsdp2", verl_python),
    )


def _other(name: str, module: str, python: str | None) -> Program:
    how_to_install = (
        f"install {_REQUIREMENTS / f'{name}_requirements.txt'} into an environment of its own and name its "
        f"interpreter with --{name}-python, or run `make bench-trainer`, which does both"
    )
    return Program(name=name, module=module, python=python or sys.executable, how_to_install=how_to_install)


def run_trainer_benchmarks(
    contenders: Sequence[Program], *, quick: bool = False, workload: Workload | None = None
) -> list[TrainerFigures]:
    """Yields the figures of each contender, in order; the first contender must run."""
    from rewardflow.bench.trainer_workload import write_workload

    workload = workload or (QUICK if quick else Workload())
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        write_workload(workload, folder)
        race = _Race(workload)
        for program in contenders:
            race.enter(program, folder, stack)
        for _ in range(workload.rounds):
            race.run_round()
        return race.figures(contenders)


class _Race:
    """The running contenders and their turns so far."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._turns: dict[str, list[Turn]] = {}
        self._versions: dict[str, Mapping[str, str]] = {}
        self._why_not: dict[str, str] = {}
        self._running: list[Contender] = []

    def enter(self, program: Program, folder: Path, stack: contextlib.ExitStack) -> None:
        """Starts a contender and warms it up. Leaves one out that cannot run, with the reason; ours must run."""
        try:
            contender = stack.enter_context(running(program, folder))
            contender.prepare()
        except ContenderFailed as error:
            self._leave_out(program, error)
        else:
            self._running.append(contender)
            self._turns[program.name] = []
            self._versions[program.name] = contender.versions

    def run_round(self) -> None:
        """Runs one turn of each contender; another one begins in each round."""
        self._running.append(self._running.pop(0))
        for contender in tuple(self._running):
            try:
                self._turns[contender.program.name].append(contender.take_turn())
            except ContenderFailed as error:
                self._running.remove(contender)
                self._leave_out(contender.program, error)

    def _leave_out(self, program: Program, error: ContenderFailed) -> None:
        if program.name == OURS:
            raise error
        self._turns.pop(program.name, None)
        self._why_not[program.name] = str(error)

    def figures(self, contenders: Sequence[Program]) -> list[TrainerFigures]:
        return [
            TrainerFigures(
                name=program.name,
                workload=self._workload,
                turns=tuple(self._turns.get(program.name, ())),
                versions=self._versions.get(program.name),
                why_not=self._why_not.get(program.name, ""),
            )
            for program in contenders
        ]


def report_of(figures: Sequence[TrainerFigures]) -> dict[str, Any]:
    """Returns the whole benchmark as one JSON object."""
    return {
        "workload": asdict(figures[0].workload),
        "trainer": [one.to_json() for one in figures],
        "rows": [row.to_json() for row in rows_of(figures)],
    }


def rows_of(figures: Sequence[TrainerFigures]) -> Iterator[BenchmarkRow]:
    ours, *others = figures
    by_name = {one.name: one for one in others}
    if trl := by_name.get(TRL):
        yield _rate("whole step", ours, "step_s", trl, bar=STEP_BAR)
        yield _rate("generation", ours, "generate_s", trl)
        yield _rate("all but generation", ours, "train_s", trl)
    if verl := by_name.get(VERL):
        yield _rate("update: forward, backward, optimizer", ours, "update_s", verl, bar=UPDATE_BAR)
        yield _rate("all but generation, verl's with its pass for old log-probs", ours, "train_s", verl)
    for other in others:
        yield _row("peak memory", ours.peak_mb, "MB", other, other.peak_mb if other.turns else None)


def _rate(what: str, ours: TrainerFigures, seconds: str, other: TrainerFigures, *, bar: str = "") -> BenchmarkRow:
    own = ours.tokens_per_s(getattr(ours, seconds)) or 0.0
    theirs = other.tokens_per_s(getattr(other, seconds)) if other.turns else None
    return _row(f"{what}: sampled tokens a second", own, "1/s", other, theirs, bar=bar)


def _row(
    what: str, own: float, unit: str, other: TrainerFigures, theirs: float | None, *, bar: str = ""
) -> BenchmarkRow:
    return BenchmarkRow(
        name=f"{what}, against {other.name}",
        value=own,
        unit=unit,
        yardstick=theirs,
        yardstick_name=other.name if theirs is not None else f"not measured: {other.why_not}",
        bar=bar,
        bar_on="ratio",
    )
