"""A run that was killed and went on is the run that was not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import random
import resource
import signal
import sqlite3
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from killed_run import (
    MAX_CALLS,
    NUM_CALLS,
    NUM_STEPS,
    fork_server,
    kill_after,
    num_calls_in,
    settings_of,
    train,
    verdicts_in,
)
from torch import Tensor

from rewardflow.errors import InvalidInput
from rewardflow.flow.reports import StepReport
from rewardflow.observe.run_directory import CHECKPOINTS_FOLDER
from rewardflow.runtime.local import embedded
from rewardflow.runtime.prepare import find_checkpoint, store_of
from rewardflow.settings.run_settings import (
    AlgorithmSettings,
    CheckpointSettings,
    DataSettings,
    RunSettings,
    TrainerSettings,
)

torch.set_num_threads(1)

NUM_KILLS = int(os.environ.get("REWARDFLOW_TEST_KILLS", "4"))


class Cut(Exception):
    """The run ends here."""


@dataclass(frozen=True)
class Undisturbed:
    folder: Path
    weights: Tensor


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder = tmp_path_factory.mktemp("undisturbed")
    return Undisturbed(folder, asyncio.run(train(settings_of(folder))))


def cut_after(step: int) -> Any:
    def on_step(report: StepReport) -> None:
        if report.step == step:
            raise Cut

    return on_step


def train_until(step: int, settings: RunSettings, **options: Any) -> None:
    """The loop breaks after this step, before it could be saved."""
    with pytest.raises(Cut):
        asyncio.run(train(settings, on_step=cut_after(step), **options))


def metrics_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text("utf-8").splitlines()]


def checkpoints_in(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "run" / CHECKPOINTS_FOLDER).iterdir())


def assert_equals(folder: Path, weights: Tensor, undisturbed: Undisturbed) -> None:
    assert torch.equal(weights, undisturbed.weights)
    assert verdicts_in(folder) == verdicts_in(undisturbed.folder)
    before, now = metrics_in(undisturbed.folder), metrics_in(folder)
    assert [line["step"] for line in now] == list(range(NUM_STEPS))
    for name in ("lr", "num_groups", "num_scored", "failed", "dropped"):
        assert [line[name] for line in now] == [line[name] for line in before]
    for name in ("grad_norm", "score_mean"):
        assert [line[name] for line in now] == pytest.approx([line[name] for line in before], rel=1e-6)


# ---- killed -------------------------------------------------------------------------------------------------------


def test_a_run_that_is_killed_again_and_again_equals_the_one_that_was_not(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    dice = random.Random()
    moments = sorted(dice.randint(1, NUM_CALLS - 1) for _ in range(NUM_KILLS))
    folder = tmp_path / "killed"
    settings_of(folder)
    with fork_server() as start:
        for moment in moments:
            kill_after(start(folder), folder, moment, dice.uniform(0.0, 0.05))
        last = start(folder)
        last.join()
    assert last.exitcode == 0, moments
    assert_equals(folder, torch.load(folder / "weights.pt"), undisturbed)
    assert num_calls_in(undisturbed.folder) == NUM_CALLS
    assert NUM_CALLS <= num_calls_in(folder) <= NUM_CALLS + NUM_KILLS * MAX_CALLS, moments


# ---- going on -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0, 2, 5])
def test_a_run_that_broke_off_goes_on_and_pays_for_no_verdict_twice(
    tmp_path: Path, step: int, undisturbed: Undisturbed
) -> None:
    train_until(step, settings_of(tmp_path))
    num_lost = num_calls_in(tmp_path) - len(verdicts_in(tmp_path))  # in flight when the loop broke
    weights = asyncio.run(train(settings_of(tmp_path), resume=True))
    assert_equals(tmp_path, weights, undisturbed)
    assert num_calls_in(tmp_path) == NUM_CALLS + num_lost


def test_delivered_failures_stay_what_they_were(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    train_until(5, settings)
    before = {line["step"]: line["failed"] for line in metrics_in(tmp_path)}
    rows = verdicts_in(tmp_path)
    assert any(kind == "service" for *_, kind in rows.values())
    asyncio.run(train(settings, resume=True))
    after = {line["step"]: line["failed"] for line in metrics_in(tmp_path)}
    assert {step: after[step] for step in before} == before
    assert {place: verdicts_in(tmp_path)[place] for place in rows} == rows


@pytest.mark.parametrize(
    "changes",
    [
        {"schedule": {"placement": "separate"}},
        {"schedule": {"stream": "batch", "max_staleness": 2, "refill": 2, "refill_rounds": 1}},
        {
            "schedule": {"stream": "batch"},
            "algorithm": AlgorithmSettings(reward_kl_coef=0.1, reward_kl_target=0.01, reward_kl_horizon=50),
        },
        {"trainer": TrainerSettings(lr=1e-3, threads=1, offload=True), "schedule": {"max_staleness": 0}},
    ],
    ids=["separate", "reserves", "adaptive KL", "offload"],
)
def test_every_way_to_train_goes_on_as_it_would_have(tmp_path: Path, changes: dict[str, Any]) -> None:
    def settings_in(folder: Path) -> RunSettings:
        settings = settings_of(folder, steps=5)
        schedule = settings.schedule.changed(**changes["schedule"])
        return replace(settings, **{**changes, "schedule": schedule})

    expected = asyncio.run(train(settings_in(tmp_path / "whole")))
    train_until(3, settings_in(tmp_path / "broken"))
    found = asyncio.run(train(settings_in(tmp_path / "broken"), resume=True))
    assert torch.equal(found, expected)
    broken, whole = verdicts_in(tmp_path / "broken"), verdicts_in(tmp_path / "whole")
    assert all(broken[key] == whole[key] for key in broken.keys() & whole.keys())
    # Calls of a reserve that a step no longer needs end or not, as time has it; nothing is trained on them.
    assert broken.keys() == whole.keys() or "refill" in changes["schedule"]


def test_from_a_damaged_checkpoint_the_one_before_is_gone_on_from(tmp_path: Path, undisturbed: Undisturbed) -> None:
    settings = settings_of(tmp_path)
    asyncio.run(train(settings))
    (weights_file,) = (tmp_path / "run" / CHECKPOINTS_FOLDER / f"step_{NUM_STEPS:06d}" / "state").glob("*.distcp")
    os.truncate(weights_file, 1000)
    checkpoint = find_checkpoint(settings)
    assert checkpoint is not None
    assert checkpoint.step == NUM_STEPS - 2
    assert_equals(tmp_path, asyncio.run(train(settings, resume=True)), undisturbed)
    assert num_calls_in(tmp_path) == NUM_CALLS


def test_a_run_without_a_checkpoint_starts_again_with_its_journal(tmp_path: Path, undisturbed: Undisturbed) -> None:
    settings = settings_of(tmp_path, checkpoint=CheckpointSettings())
    train_until(3, settings)
    assert find_checkpoint(settings) is None
    num_lost = num_calls_in(tmp_path) - len(verdicts_in(tmp_path))
    assert_equals(tmp_path, asyncio.run(train(settings, resume=True)), undisturbed)
    assert num_calls_in(tmp_path) == NUM_CALLS + num_lost


def test_a_directory_without_a_run_gets_one(tmp_path: Path) -> None:
    asyncio.run(train(settings_of(tmp_path, steps=1), resume=True))
    assert [line["step"] for line in metrics_in(tmp_path)] == [0]


def test_a_finished_run_has_nothing_left_to_do_and_may_be_made_longer(tmp_path: Path) -> None:
    weights = asyncio.run(train(settings_of(tmp_path, steps=2)))
    again = asyncio.run(train(settings_of(tmp_path, steps=2), resume=True))
    assert torch.equal(again, weights)
    assert [line["step"] for line in metrics_in(tmp_path)] == [0, 1]
    asyncio.run(train(settings_of(tmp_path, steps=3), resume=True))
    assert [line["step"] for line in metrics_in(tmp_path)] == [0, 1, 2]


# ---- when it is saved ---------------------------------------------------------------------------------------------


def test_the_end_is_saved_the_last_ones_stay_and_so_does_the_best(tmp_path: Path) -> None:
    checkpoint = CheckpointSettings(every=1, keep=2, keep_best_by="lr")  # a cosine that starts at its highest
    trainer = TrainerSettings(lr=1e-3, lr_schedule="cosine", threads=1)
    asyncio.run(train(settings_of(tmp_path, steps=5, checkpoint=checkpoint, trainer=trainer)))
    assert checkpoints_in(tmp_path) == ["step_000001", "step_000004", "step_000005"]


def test_a_metric_that_is_not_there_is_told_once_and_everything_is_saved_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asyncio.run(train(settings_of(tmp_path, steps=2, checkpoint=CheckpointSettings(keep_best_by="scores_mean"))))
    told = [record.getMessage() for record in caplog.records if "keep_best_by" in record.getMessage()]
    assert told == ["step 0 has no number 'scores_mean' for checkpoint.keep_best_by; did you mean 'score_mean'?"]
    assert checkpoints_in(tmp_path) == ["step_000002"]


def test_the_best_may_be_by_a_number_inside_another_and_a_nan_is_never_it(tmp_path: Path) -> None:
    best_by = CheckpointSettings(every=1, keep=3, keep_best_by="busy_s/update")
    settings = settings_of(tmp_path, steps=3, checkpoint=best_by)
    busy_s: list[float] = []

    async def train_with_one_step_of_nan() -> None:
        def on_step(report: StepReport) -> None:
            busy_s.append(report.usage.busy_s["update"])
            if report.step == 0:
                assert run.checkpointer is not None
                run.checkpointer.stepped(replace(report, usage=replace(report.usage, busy_s={"update": math.nan})))

        async with embedded(settings, probes=False, on_step=on_step) as run:
            await run.train()

    asyncio.run(train_with_one_step_of_nan())
    best = store_of(settings).best()
    assert best is not None
    assert best.score == max(busy_s[1:])


def test_a_signal_saves_at_the_next_boundary(tmp_path: Path) -> None:
    def on_step(report: StepReport) -> None:
        if report.step == 1:
            os.kill(os.getpid(), signal.SIGUSR1)

    asyncio.run(train(settings_of(tmp_path, steps=5, checkpoint=CheckpointSettings(keep=2)), on_step=on_step))
    first, last = checkpoints_in(tmp_path)
    assert first in ("step_000002", "step_000003")
    assert last == "step_000005"


def test_a_run_whose_time_is_up_ends_in_order_and_goes_on_later(tmp_path: Path, undisturbed: Undisturbed) -> None:
    async def first_life() -> int:
        settings = settings_of(tmp_path, checkpoint=CheckpointSettings(max_hours=1e-6))
        async with embedded(settings, probes=False) as run:
            return await run.train()

    assert asyncio.run(first_life()) == 1
    assert checkpoints_in(tmp_path) == ["step_000001"]
    assert [line["step"] for line in metrics_in(tmp_path)] == [0]
    weights = asyncio.run(train(settings_of(tmp_path), resume=True))
    assert_equals(tmp_path, weights, undisturbed)


def test_a_run_that_was_asked_to_stop_ends_after_its_step_and_equals_the_one_that_was_not(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    async def first_life() -> tuple[int, str | None]:
        def on_step(report: StepReport) -> None:
            if report.step == 3:
                assert run.checkpointer is not None
                run.checkpointer.stop("signal")

        async with embedded(settings_of(tmp_path), probes=False, on_step=on_step) as run:
            assert run.checkpointer is not None
            return await run.train(), run.checkpointer.statistics().stopped_by

    assert asyncio.run(first_life()) == (4, "signal")
    weights = asyncio.run(train(settings_of(tmp_path), resume=True))
    assert_equals(tmp_path, weights, undisturbed)


def test_a_run_saves_itself_by_the_clock_and_keeps_the_latest(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """Every step is longer than the time between two checkpoints."""
    settings = settings_of(tmp_path, checkpoint=CheckpointSettings(every_minutes=1e-9))
    train_until(5, settings)
    assert checkpoints_in(tmp_path) == ["step_000005"]
    weights = asyncio.run(train(settings_of(tmp_path), resume=True))
    assert_equals(tmp_path, weights, undisturbed)


def test_a_run_with_little_time_saves_its_first_step_to_know_how_long_the_last_save_takes(tmp_path: Path) -> None:
    async def life() -> None:
        settings = settings_of(tmp_path, steps=3, checkpoint=CheckpointSettings(max_hours=24.0, keep=2))
        async with embedded(settings, probes=False) as run:
            await run.train()

    asyncio.run(life())
    assert checkpoints_in(tmp_path) == ["step_000001", "step_000003"]


def test_a_full_disk_costs_a_checkpoint_and_not_the_run(
    tmp_path: Path, undisturbed: Undisturbed, caplog: pytest.LogCaptureFixture
) -> None:
    """Between the fourth step and the last no file may grow as large as the weights are.

    The journal stays below that: a run whose verdicts cannot be saved stops.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def on_step(report: StepReport) -> None:
        if report.step == 3:
            with contextlib.closing(sqlite3.connect(tmp_path / "run" / "journal.db")) as journal:
                journal.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
        if report.step == 7:  # two steps after the checkpoint before began to be written, beside the run
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    settings = settings_of(tmp_path, checkpoint=CheckpointSettings(every=2, keep=9))
    try:
        weights = asyncio.run(train(settings, on_step=on_step))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert checkpoints_in(tmp_path) == ["step_000002", "step_000008"]
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [message.partition(":")[0] for message in warnings] == ["NOT SAVED", "NOT SAVED"]
    assert_equals(tmp_path, weights, undisturbed)


# ---- what is refused ----------------------------------------------------------------------------------------------


def test_other_settings_are_refused_before_anything_is_asked_or_loaded(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, steps=2)
    asyncio.run(train(settings))
    num_calls = num_calls_in(tmp_path)
    changed = replace(settings, trainer=TrainerSettings(lr=1e-2), data=DataSettings(task="arithmetic"))
    with pytest.raises(InvalidInput, match=r"data.task was .*; .*trainer.lr was 0.001 and is 0.01"):
        asyncio.run(train(changed, resume=True))
    assert num_calls_in(tmp_path) == num_calls
    assert len(metrics_in(tmp_path)) == 2


def test_a_run_that_was_written_nowhere_cannot_go_on(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="run_dir must be given"):
        asyncio.run(train(settings_of(tmp_path, run_dir=None, checkpoint=CheckpointSettings()), resume=True))
