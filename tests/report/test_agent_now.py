"""What the agent of a running run does now."""

from __future__ import annotations

from pathlib import Path

from written_runs import write_lines, write_run

from rewardflow.observe.events import AccountLoad, to_json
from rewardflow.observe.process_lock import ProcessLock
from rewardflow.observe.run_directory import AGENT_LOCK_FILE
from rewardflow.report.agent_now import now_section, read_loads
from rewardflow.report.run_data import read_run


def load(in_flight: int, **fields: object) -> AccountLoad:
    return AccountLoad(at_s=1.0, account="judge", in_flight=in_flight, waiting=7, limit=64, **fields)  # type: ignore[arg-type]


def test_the_last_load_of_each_account_is_shown_while_the_run_goes_on(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", steps=1)
    write_lines(directory.events_path, [to_json(load(3)), to_json(load(5, rpm=600.0, broken=1))])
    with ProcessLock.acquire(directory.path / AGENT_LOCK_FILE):
        run = read_run(directory.path)
        assert run.state == "running"
        loads = read_loads(run)
    assert [one.in_flight for one in loads] == [5]
    shown = now_section(loads)
    assert shown is not None
    assert "5 of 64" in shown
    assert "600" in shown
    assert "1 broken" in shown


def test_nothing_is_shown_of_a_run_that_has_ended_or_was_killed(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", steps=1)
    write_lines(directory.events_path, [to_json(load(3))])
    assert read_loads(read_run(directory.path)) == ()
    assert now_section(()) is None


def test_an_earlier_session_tells_nothing_about_now(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", steps=1)
    opened = {"v": 1, "event": "AgentOpened", "at_s": 0.0, "rewards": ["judge"]}
    write_lines(directory.events_path, [to_json(load(3)), opened])
    with ProcessLock.acquire(directory.path / AGENT_LOCK_FILE):
        assert read_loads(read_run(directory.path)) == ()
