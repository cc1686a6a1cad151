"""Every error in the user's code names its place, wherever the code runs, and its frames are in the journal."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Any

import pytest

import rewardflow as rf
from rewardflow.reward.code.user_frames import MAX_TRACE_CHARS, NOWHERE, Origin, give_origin, origin_of, place_of_code
from rewardflow.reward.journal.reader import JournalReader

REWARD = """import asyncio
import json


def read(text):
    return json.loads(text)


def plain(solution_str):
    return read(solution_str)


async def on_the_loop(solution_str):
    await asyncio.sleep(0)
    return read(solution_str)


def from_another(solution_str):
    try:
        read(solution_str)
    except ValueError as error:
        raise RuntimeError("no JSON") from error


async def cancels(solution_str):
    raise asyncio.CancelledError


async def stops_the_loop(solution_str):
    asyncio.get_running_loop().stop()


class Hooks:
    def compute_score(self, solution_str):
        return 1.0

    def post_process_scores(self, scores):
        return scores / 0


class Decides:
    def compute_score(self, solution_str):
        return 1.0

    def decide_locally(self, rollout):
        return rollout.nothing


async def reads_in_a_task(solution_str):
    async def read_later():
        return read(solution_str)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(read_later())


def in_a_task(solution_str):
    asyncio.run(reads_in_a_task(solution_str))
"""


@pytest.fixture
def reward(tmp_path: Path) -> Path:
    (tmp_path / "reward.py").write_text(REWARD)
    return tmp_path / "reward.py"


def verdict(reward: Path, name: str, **options: Any) -> rf.Reward:
    return rf.score([rf.Rollout(group_id="q", response="?")], f"{reward}:{name}", **options)[0]


@pytest.mark.parametrize(
    ("name", "options", "place"),
    [
        ("plain", {}, "reward.py, line 6, in read"),
        ("plain", {"workers": "process"}, "reward.py, line 6, in read"),
        ("on_the_loop", {}, "reward.py, line 6, in read"),
        ("from_another", {}, "reward.py, line 22, in from_another"),
        ("from_another", {"workers": "process"}, "reward.py, line 22, in from_another"),
        ("cancels", {}, "reward.py, line 26, in cancels"),
        ("stops_the_loop", {}, "reward.py, line 29, in stops_the_loop"),
        ("Hooks", {}, "reward.py, line 38, in post_process_scores"),
        ("Decides", {}, "reward.py, line 46, in decide_locally"),
        ("reads_in_a_task", {}, "reward.py, line 6, in read"),
        ("in_a_task", {}, "reward.py, line 6, in read"),
        ("in_a_task", {"workers": "process"}, "reward.py, line 6, in read"),
    ],
)
def test_a_user_error_names_its_place(reward: Path, name: str, options: dict[str, Any], place: str) -> None:
    failed = verdict(reward, name, **options)
    assert failed.kind == "user_error"
    assert str(failed.error).endswith(f"({place})")


@pytest.mark.parametrize("options", [{}, {"workers": "process"}])
def test_an_error_of_a_task_group_is_told_as_the_error_of_its_task(reward: Path, options: dict[str, Any]) -> None:
    failed = verdict(reward, "in_a_task", **options)
    assert str(failed.error).startswith("JSONDecodeError: Expecting value")
    assert "in read_later" in str(failed.traceback)


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_the_users_frames_are_in_the_journal_and_told_once_with_v(
    reward: Path, tmp_path: Path, workers: str, caplog: pytest.LogCaptureFixture
) -> None:
    rollouts = [rf.Rollout(group_id=f"q{number}", response="?") for number in range(5)]
    options: dict[str, Any] = {"workers": "process"} if workers == "process" else {}
    with caplog.at_level(logging.INFO, logger="rewardflow"):
        rf.score(rollouts, f"{reward}:from_another", journal=tmp_path / "run.db", **options)
    with JournalReader(tmp_path / "run.db") as reader:
        traces = [row.verdict["traceback"] for row in reader.rows()]
    (trace,) = set(traces)
    assert len(traces) == 5
    assert [line.strip() for line in trace.splitlines() if "File" in line] == [
        f'File "{reward}", line 20, in from_another',
        f'File "{reward}", line 6, in read',
        f'File "{reward}", line 22, in from_another',
    ]
    assert "RuntimeError: no JSON" in trace
    assert caplog.text.count(trace) == 1


def test_a_journal_without_texts_has_no_frames(reward: Path, tmp_path: Path) -> None:
    rf.score([rf.Rollout(group_id="q", response="?")], f"{reward}:plain", journal=tmp_path / "run.db", store="hash")
    with JournalReader(tmp_path / "run.db") as reader:
        (row,) = reader.rows()
    assert "traceback" not in row.verdict
    assert "traceback" in row.verdict["digests"]


def test_a_trace_has_a_bound_and_no_text_of_an_exception_can_break_it() -> None:
    class Loud(Exception):
        def __str__(self) -> str:
            raise ValueError

    def raise_it(error: Exception) -> Origin:
        try:
            raise error
        except Exception as caught:
            return origin_of(caught)

    assert len(raise_it(ValueError("x" * 100_000)).trace) == MAX_TRACE_CHARS
    assert "in raise_it" in raise_it(Loud()).place
    assert origin_of(ValueError("never raised")) == NOWHERE


def test_an_exception_that_was_rebuilt_keeps_its_origin() -> None:
    error, origin = ValueError(), Origin("reward.py, line 1, in f", "frames")
    give_origin(error, origin)
    assert origin_of(error) == origin


def test_the_place_of_a_function_is_where_it_is_defined() -> None:
    def inner() -> None: ...

    @functools.wraps(inner)
    def outer() -> None: ...

    class Callable:
        def __call__(self) -> None: ...

    places = [place_of_code(one) for one in (inner, outer, functools.partial(inner), Callable())]
    assert [place.rpartition(" ")[2] for place in places] == ["inner", "inner", "inner", "__call__"]
    assert place_of_code(len) == ""
