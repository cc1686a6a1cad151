"""What is written to a run's directory comes back, also after a crash; directories with other files are refused."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import rewardflow as rf
from rewardflow.errors import InvalidInput
from rewardflow.observe.events import AgentOpened, EventSink, WorkerAbandoned, to_json
from rewardflow.observe.line_file import BATCH_LINES, encode_line
from rewardflow.observe.run_directory import EventFile, RunDirectory, read_events, read_steps
from rewardflow.observe.step_totals import StepTotals


def event(number: int) -> WorkerAbandoned:
    return WorkerAbandoned(at_s=float(number), reward="judge", num_abandoned=number)


def numbers(path: Path) -> list[int]:
    return [item.num_abandoned for item in read_events(path) if isinstance(item, WorkerAbandoned)]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# -- the directory --


def test_a_created_run_can_be_opened_again(tmp_path: Path) -> None:
    created = RunDirectory.create(tmp_path / "deep" / "run", name="first")
    assert RunDirectory.open(tmp_path / "deep" / "run") == created
    assert (created.name, created.path) == ("first", tmp_path / "deep" / "run")
    assert created.started_at > 1e9
    assert json.loads((created.path / "run.json").read_text())["schema_version"] == 1


def test_a_run_without_a_name_is_named_like_its_directory(tmp_path: Path) -> None:
    assert RunDirectory.create(tmp_path / "gsm8k").name == "gsm8k"


def test_only_its_owner_can_read_a_run(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    with run.open_events(), run.open_steps():
        pass
    assert mode_of(run.path) == 0o700
    assert {mode_of(path) for path in run.path.iterdir()} == {0o600}
    assert {path.name for path in run.path.iterdir()} == {"run.json", "events.jsonl", "steps.jsonl"}


def test_at_creates_a_run_and_then_resumes_it_under_its_own_name(tmp_path: Path) -> None:
    created = RunDirectory.at(tmp_path / "run", name="first")
    assert RunDirectory.at(tmp_path / "run", name="second") == created


def test_an_empty_directory_and_one_from_a_crash_in_create_can_become_a_run(tmp_path: Path) -> None:
    (tmp_path / ".run.json.tmp").write_bytes(b'{"schema_v')
    assert RunDirectory.at(tmp_path, name="again").name == "again"


@pytest.mark.parametrize("names", [["journal.db"], ["journal.db", "journal.db-wal", "journal.db-shm"]])
def test_a_directory_that_holds_only_a_journal_can_become_a_run(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"verdicts")
    assert RunDirectory.at(tmp_path, name="later").name == "later"
    assert [(tmp_path / name).read_bytes() for name in names] == [b"verdicts"] * len(names)


def test_a_model_may_be_measured_in_the_directory_of_the_run_that_will_train_it(tmp_path: Path) -> None:
    (tmp_path / "eval" / "model").mkdir(parents=True)
    assert RunDirectory.at(tmp_path, name="later").name == "later"
    assert (tmp_path / "eval" / "model").is_dir()


def test_a_journal_may_lie_in_the_directory_of_its_run_whichever_came_first(tmp_path: Path) -> None:
    def compute_score(response: str) -> float:
        return 1.0

    rollouts = [rf.Rollout(group_id="q", response="an answer")]
    for number, run_dir in enumerate([None, tmp_path, tmp_path]):
        (reward,) = rf.score(rollouts, compute_score, journal=tmp_path / "journal.db", run_dir=run_dir)
        assert reward.cached == (number > 0)
    assert {path.name for path in tmp_path.iterdir()} == {"run.json", "events.jsonl", "steps.jsonl", "journal.db"}


def test_another_file_beside_the_journal_is_still_refused(tmp_path: Path) -> None:
    for name in ("journal.db", "thesis.tex"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(InvalidInput, match=r"but with thesis\.tex$"):
        RunDirectory.at(tmp_path)


def test_a_second_run_cannot_take_the_directory_of_the_first(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "run")
    with pytest.raises(InvalidInput, match="already holds one"):
        RunDirectory.create(tmp_path / "run")


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    for make in (RunDirectory.create, RunDirectory.at):
        with pytest.raises(InvalidInput, match="must be a directory, got the file"):
            make(tmp_path / "run")


def test_a_file_in_the_way_of_a_parent_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InvalidInput, match="run directory"):
        RunDirectory.at(tmp_path / "file" / "run")


def test_a_directory_with_other_things_in_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InvalidInput, match=r"empty but for a journal\.db.*thesis\.tex"):
        RunDirectory.at(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_opening_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"needs a readable run\.json"):
        RunDirectory.open(tmp_path)


def test_a_run_of_a_newer_schema_is_refused_with_both_versions(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"schema_version": 2, "rewardflow_version": "9.0"}')
    with pytest.raises(InvalidInput, match=r"at most 1, got 2 in .*rewardflow 9\.0"):
        RunDirectory.at(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema_version": 1}', '{"schema_version": "1"}', "\xff"])
def test_a_damaged_run_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text, encoding="latin-1")
    with pytest.raises(InvalidInput, match=r"run\.json"):
        RunDirectory.open(tmp_path)


# -- events --


def test_events_come_back_in_order(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    with run.open_events() as events:
        sink: EventSink = events
        for number in range(2 * BATCH_LINES + 7):
            sink.emit(event(number))
    assert list(read_events(run.path)) == [event(number) for number in range(2 * BATCH_LINES + 7)]
    assert list(read_events(run.events_path)) == list(read_events(run.path))
    assert dataclasses.astuple(events.statistics()) == (2 * BATCH_LINES + 7, 0, 0)


def test_a_resumed_run_appends(tmp_path: Path) -> None:
    for number in range(3):
        with RunDirectory.at(tmp_path / "run").open_events() as events:
            events.emit(event(number))
    assert numbers(tmp_path / "run") == [0, 1, 2]


def test_a_process_that_ends_without_closing_loses_nothing(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from rewardflow.observe.events import WorkerAbandoned\n"
        "from rewardflow.observe.run_directory import EventFile\n"
        "events = EventFile(sys.argv[1])\n"
        "for n in range(3): events.emit(WorkerAbandoned(at_s=0.0, reward='judge', num_abandoned=n))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "events.jsonl")], env=environment, check=True, timeout=60
    )
    assert numbers(tmp_path / "events.jsonl") == [0, 1, 2]


def test_an_event_that_cannot_be_encoded_is_counted_and_the_others_are_written(tmp_path: Path) -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    with EventFile(tmp_path / "events.jsonl") as events:
        events.emit(event(1))
        events.emit(AgentOpened(at_s=0.0, rewards=["judge"], settings={"broken": Broken()}))
        events.emit(event(2))
    assert numbers(tmp_path / "events.jsonl") == [1, 2]
    assert events.failed == 1


def test_nan_and_broken_unicode_never_reach_the_file(tmp_path: Path) -> None:
    settings = {"nan": math.nan, "text": "half \ud83c a pair", "separators": "a\u2028b\nc"}
    with EventFile(tmp_path / "events.jsonl") as events:
        events.emit(AgentOpened(at_s=math.inf, rewards=["judge"], settings=settings))
        events.emit(event(1))
    assert b"NaN" not in (tmp_path / "events.jsonl").read_bytes()
    opened = next(read_events(tmp_path / "events.jsonl"))
    assert isinstance(opened, AgentOpened)
    assert opened.at_s is None
    assert opened.settings == {"nan": None, "text": "half ? a pair", "separators": "a\u2028b\nc"}
    assert events.failed == 0


def test_an_event_of_a_newer_schema_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(encode_line(to_json(event(0))) + encode_line({**to_json(event(1)), "v": 2}))
    with pytest.raises(InvalidInput, match=r"line 2: .*schema version.*got v=2"):
        list(read_events(path))


def test_a_run_that_has_written_nothing_has_no_events_and_no_steps(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    assert list(read_events(run.path)) == []
    assert read_steps(run.path) == {}


def test_reading_a_place_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="must exist"):
        list(read_events(tmp_path / "run"))
    with pytest.raises(InvalidInput, match="must exist"):
        read_steps(tmp_path / "run")


# -- steps --


def test_the_last_line_of_a_step_and_source_counts(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    with run.open_steps() as steps:
        for step, source, calls in [(1, "reward", 5), (0, "reward", 3), (1, "trainer", 0), (1, "reward", 8)]:
            totals = StepTotals(step, source)
            totals.calls = calls
            steps.append(totals.to_json())
    found = read_steps(run.path)
    assert list(found) == [0, 1]
    assert {source: totals["calls"] for source, totals in found[1].items()} == {"reward": 8, "trainer": 0}


def test_a_torn_step_leaves_the_one_before_in_force(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    whole = encode_line(StepTotals(1).to_json())
    path.write_bytes(whole + whole[:-20])
    assert list(read_steps(path)) == [1]


@pytest.mark.parametrize("change", [{"v": 2}, {"step": None}, {"source": 1}])
def test_a_step_that_cannot_be_understood_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_bytes(encode_line({**StepTotals(1).to_json(), **change}))
    with pytest.raises(InvalidInput, match="line 1"):
        read_steps(path)
