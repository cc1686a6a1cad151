"""Calls that run away are killed, and the others keep their warm processes."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rewardflow.errors import InvalidInput, ServiceError
from rewardflow.reward.code.abandonment import Abandonment, in_call
from rewardflow.reward.code.processes.warm_processes import CallAbandoned, WarmProcess, WarmProcesses

_AT_MOST_S = 60.0  # a call that waits this long would wait for ever

SAMPLES = """
import os, re, time
from pathlib import Path

from rewardflow.errors import InvalidInput


def work(do, marker=""):
    if marker:
        with Path(marker).open("a") as file:
            file.write(f"{os.getpid()}\\n")
    match do:
        case "pid":
            return os.getpid()
        case "run away":
            return re.search(r"(\\w+\\s?)+$", "a" * 40 + "!")
        case "die":
            os._exit(9)
        case "die at first" if len(Path(marker).read_text().splitlines()) == 1:
            os._exit(9)
        case "raise":
            raise InvalidInput("the score must be a number, got none")
        case "send an object":
            return open
    return do


class Source:
    def build(self):
        return work


class SlowSource:
    def __init__(self, folder):
        self.folder = Path(folder)

    def build(self):
        (self.folder / "loads").write_text("\\n")
        while not (self.folder / "may go on").exists():
            time.sleep(0.005)
        return work


class Broken:
    def build(self):
        raise InvalidInput("sympy must be installed, got nothing")
"""


@pytest.fixture
def samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "warm_samples.py").write_text(SAMPLES)
    monkeypatch.syspath_prepend(tmp_path)
    import warm_samples  # type: ignore[import-not-found]

    yield warm_samples
    del sys.modules["warm_samples"]


@pytest.fixture
def processes(samples: Any) -> Iterator[WarmProcesses]:
    processes = WarmProcesses(samples.Source(), name="the rule of tests", at_once=2)
    yield processes
    processes.end_idle()


class Caller:
    """Makes calls in threads, each of which the test can give up."""

    def __init__(self, processes: WarmProcesses, threads: ThreadPoolExecutor) -> None:
        self._processes = processes
        self._threads = threads

    def begin(self, do: str, marker: str = "") -> tuple[Future[Any], Abandonment]:
        abandonment = Abandonment()

        def run() -> Any:
            with in_call(abandonment):
                return self._processes.call(do=do, marker=marker)

        return self._threads.submit(run), abandonment

    def call(self, do: str, marker: str = "") -> Any:
        return self.begin(do, marker)[0].result()


@pytest.fixture
def caller(processes: WarmProcesses) -> Iterator[Caller]:
    with ThreadPoolExecutor(8) as threads:
        yield Caller(processes, threads)


def wait_for(marker: Path) -> int:
    """Returns the id of the process that runs the call."""
    wait_for_line(marker)
    return int(marker.read_text().split()[-1])


def wait_for_line(marker: Path) -> None:
    while not (marker.exists() and marker.read_text().endswith("\n")):
        time.sleep(0.005)  # the process of another interpreter tells it through a file


def test_the_next_call_uses_the_same_process(caller: Caller, processes: WarmProcesses) -> None:
    pid = caller.call("pid")
    assert pid != os.getpid()
    assert caller.call("pid") == pid
    assert processes.statistics().started == 1


def test_a_call_outside_an_agent_runs_in_its_own_thread(processes: WarmProcesses) -> None:
    assert processes.call(do="pid") == os.getpid()
    assert processes.statistics().started == 0


def test_a_call_that_runs_away_is_killed_when_it_is_given_up(
    caller: Caller, processes: WarmProcesses, tmp_path: Path
) -> None:
    future, abandonment = caller.begin("run away", str(tmp_path / "runs"))
    pid = wait_for(tmp_path / "runs")
    assert abandonment.abandon() == "the rule of tests"
    with pytest.raises(CallAbandoned):
        future.result()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert processes.statistics().killed == 1
    assert caller.call("next") == "next"


def test_calls_that_run_away_do_not_keep_others_from_a_process(
    caller: Caller, processes: WarmProcesses, tmp_path: Path
) -> None:
    stuck = [caller.begin("run away", str(tmp_path / f"runs{number}")) for number in range(3)]
    try:
        assert caller.begin("next")[0].result(_AT_MOST_S) == "next"
    finally:
        for _, abandonment in stuck:
            abandonment.abandon()
    for future, _ in stuck:
        with pytest.raises(CallAbandoned):
            future.result()
    assert caller.call("next") == "next"
    assert processes.statistics().busy == 0


class LoadsWhileOneWaits(WarmProcesses):
    """Runs its first call only when another call waits for a process."""

    def _load(self, process: WarmProcess) -> None:
        super()._load(process)
        while self._num_started == 1 and not self._changed._waiters:  # type: ignore[attr-defined]
            time.sleep(0.001)


def test_a_call_that_began_to_wait_while_a_process_was_loaded_gets_one_when_that_process_is_slow(
    samples: Any, tmp_path: Path
) -> None:
    processes = LoadsWhileOneWaits(samples.Source(), name="it", at_once=1)
    with ThreadPoolExecutor(2) as threads:
        caller = Caller(processes, threads)
        stuck, abandonment = caller.begin("run away", str(tmp_path / "runs"))
        try:
            assert caller.begin("next")[0].result(_AT_MOST_S) == "next"
        finally:
            abandonment.abandon()
        with pytest.raises(CallAbandoned):
            stuck.result()
    processes.end_idle()


def test_a_process_that_loads_when_its_call_is_given_up_runs_the_next_call(samples: Any, tmp_path: Path) -> None:
    processes = WarmProcesses(samples.SlowSource(str(tmp_path)), name="the rule of tests", at_once=1)
    with ThreadPoolExecutor(2) as threads:
        caller = Caller(processes, threads)
        future, abandonment = caller.begin("first")
        wait_for_line(tmp_path / "loads")
        assert abandonment.abandon() == ""  # nothing was killed
        (tmp_path / "may go on").touch()
        with pytest.raises(CallAbandoned):
            future.result()
        assert caller.call("next") == "next"
    statistics = processes.statistics()
    assert (statistics.started, statistics.killed) == (1, 0)
    processes.end_idle()


def test_a_call_whose_process_died_runs_again_and_twice_at_most(caller: Caller, tmp_path: Path) -> None:
    assert caller.call("die at first", str(tmp_path / "runs")) == "die at first"
    with pytest.raises(ServiceError, match="the process of the rule of tests died, twice for the same call"):
        caller.call("die")
    assert caller.call("next") == "next"


def test_a_process_that_was_killed_while_idle_costs_no_call(caller: Caller) -> None:
    os.kill(caller.call("pid"), 9)
    assert caller.call("next") == "next"


def test_an_exception_arrives_and_the_process_is_kept(caller: Caller, processes: WarmProcesses) -> None:
    with pytest.raises(InvalidInput, match="the score must be a number"):
        caller.call("raise")
    with pytest.raises(TypeError, match="plain data"):
        caller.call("send an object")
    assert processes.statistics().started == 1


def test_a_function_that_cannot_be_built_says_why(samples: Any) -> None:
    with ThreadPoolExecutor(1) as threads, pytest.raises(Exception, match="sympy must be installed"):
        Caller(WarmProcesses(samples.Broken(), name="it"), threads).call("next")


def test_ending_idle_processes_ends_them_and_later_calls_start_new_ones(
    caller: Caller, processes: WarmProcesses
) -> None:
    pid = caller.call("pid")
    processes.end_idle()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert caller.call("pid") != pid


def test_many_calls_share_a_few_processes(caller: Caller, processes: WarmProcesses) -> None:
    caller.call("pid")
    futures = [caller.begin(str(number))[0] for number in range(100)]
    assert [future.result() for future in futures] == [str(number) for number in range(100)]
    assert processes.statistics().busy == 0


def test_a_call_that_is_given_up_while_it_waits_takes_no_process(samples: Any, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        caller = Caller(WarmProcesses(samples.Source(), name="it", at_most=1), threads)
        stuck, first = caller.begin("run away", str(tmp_path / "runs"))
        wait_for(tmp_path / "runs")
        waiting, second = caller.begin("next")
        second.abandon()
        with pytest.raises(CallAbandoned):
            waiting.result()
        first.abandon()
        with pytest.raises(CallAbandoned):
            stuck.result()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_does_not_use_the_processes_of_its_parent(caller: Caller, processes: WarmProcesses) -> None:
    pid = caller.call("pid")
    child = os.fork()
    if child == 0:
        os._exit(processes.statistics().busy + len(processes._idle))
    assert os.waitpid(child, 0)[1] == 0
    assert caller.call("pid") == pid


def test_locks_are_never_taken_in_two_orders(caller: Caller) -> None:
    """Gives up many calls at random moments; a deadlock would hang here."""
    for number in range(30):
        future, abandonment = caller.begin("next")
        threading.Thread(target=abandonment.abandon).start()
        assert future.exception() is None or isinstance(future.exception(), CallAbandoned), number
