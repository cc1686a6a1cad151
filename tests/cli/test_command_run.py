"""How a command ends: exit codes, errors, signals, the log."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from rewardflow.cli.command_run import exit_code_of
from rewardflow.cli.display import logging_to_stderr
from rewardflow.cli.main import main
from rewardflow.errors import InvalidInput, ServiceOutage

ROOT = Path(__file__).resolve().parents[2]
SECRET = "Authorization: Bearer abcdefghijklmnop"


def start(*arguments: str, before: Sequence[str] = (), stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "COLUMNS")}
    return subprocess.Popen(
        [*before, sys.executable, "-m", "rewardflow", *arguments],
        env={**environment, "PYTHONPATH": str(ROOT / "src")},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


# ---- errors -------------------------------------------------------------------------------------------------------


def test_a_mistake_is_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["journal", "ls", str(tmp_path / "missing.db")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("rewardflow: ")
    assert said.err.count("\n") == 1
    assert "missing.db" in said.err


def test_a_traceback_is_shown_on_demand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["journal", "ls", str(tmp_path / "missing.db"), "--traceback"]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_a_file_that_cannot_be_used_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(FileNotFoundError(2, "No such file or directory", "judge.py")) == 2
    assert capsys.readouterr().err == "rewardflow: judge.py: No such file or directory\n"


def test_an_error_that_a_task_group_wrapped_is_told_like_any_other(capsys: pytest.CaptureFixture[str]) -> None:
    wrapped = ExceptionGroup("unhandled errors in a TaskGroup", [ExceptionGroup("again", [InvalidInput("the rule")])])
    assert exit_code_of(wrapped) == 2
    assert capsys.readouterr().err == "rewardflow: the rule\n"


def test_of_errors_that_came_together_the_first_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """As when an agent halts and every step that waits for it fails, some of them by being cancelled."""
    steps = [ExceptionGroup("a step", [ServiceOutage("it is down")]), ServiceOutage("it is down")]
    wrapped = BaseExceptionGroup("the loop", [asyncio.CancelledError(), BaseExceptionGroup("steps", steps)])
    assert exit_code_of(wrapped) == 2
    assert capsys.readouterr().err == "rewardflow: it is down\n"


def test_a_bug_among_errors_is_not_hidden_by_the_others() -> None:
    with pytest.raises(ExceptionGroup):
        exit_code_of(ExceptionGroup("the loop", [InvalidInput("the rule"), ZeroDivisionError("a bug")]))


@pytest.mark.parametrize("leaf", [KeyboardInterrupt(), asyncio.CancelledError()])
def test_an_interrupt_among_errors_is_an_interrupt(leaf: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(BaseExceptionGroup("the loop", [asyncio.CancelledError(), leaf])) == 130
    assert capsys.readouterr().err == "rewardflow: interrupted\n"


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), OSError(5, "no file was named")])
def test_what_is_no_mistake_of_the_caller_is_raised(error: Exception) -> None:
    with pytest.raises(type(error)):
        exit_code_of(error)


def test_an_error_shows_no_secret_and_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code_of(InvalidInput(f"{SECRET} \x1b[2J"), shows_traceback=True)
    said = capsys.readouterr().err
    assert "abcdefghijklmnop" not in said
    assert "\x1b" not in said


# ---- the log ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("verbosity", "levels"), [(0, "W"), (1, "WI"), (2, "WID"), (5, "WID")])
def test_verbosity_chooses_what_is_logged(verbosity: int, levels: str, capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("rewardflow.some.module")
    with logging_to_stderr(verbosity):
        logger.warning("message-W")
        logger.info("message-I")
        logger.debug("message-D")
    logger.error("message-E")
    said = capsys.readouterr()
    assert "".join(letter for letter in "WIDE" if f"message-{letter}" in said.err) == levels
    assert said.out == ""


def test_the_log_shows_no_secret_and_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_to_stderr(0):
        logging.getLogger("somebody.else").warning("sent %s \x1b[2J", SECRET)
        try:
            raise ValueError(SECRET)
        except ValueError:
            logging.getLogger("rewardflow").exception("it failed")
    said = capsys.readouterr().err
    assert "[redacted]" in said
    assert "ValueError" in said
    assert "abcdefghijklmnop" not in said
    assert "\x1b" not in said


def test_what_a_library_logs_below_a_warning_is_not_on_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    """bm25s sets its own logger to DEBUG."""
    logger = logging.getLogger("a_library")
    logger.setLevel(logging.DEBUG)
    with logging_to_stderr(0):
        logger.debug("building the index")
        logger.warning("the index is empty")
    said = capsys.readouterr().err
    assert "building" not in said
    assert "the index is empty" in said


# ---- signals and pipes --------------------------------------------------------------------------------------------

IGNORES_CTRL_C = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")  # as shells do for jobs in the background


@pytest.mark.parametrize(
    ("signum", "before"),
    [(signal.SIGINT, ()), (signal.SIGTERM, ()), (signal.SIGTERM, IGNORES_CTRL_C)],
    ids=["ctrl-c", "sigterm", "sigterm in the background"],
)
def test_an_interrupted_command_says_so_and_exits_with_130(
    signum: signal.Signals, before: tuple[str, ...], tmp_path: Path
) -> None:
    process = start("demo", "agent", "--run-dir", str(tmp_path / "run"), before=before)
    assert process.stderr is not None
    assert "scoring" in process.stderr.readline()
    while not (tmp_path / "run" / "journal.db").exists():  # the event loop makes it
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signum)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.endswith("rewardflow: interrupted\n")
    assert f"--run-dir {tmp_path / 'run'}" in err
    assert "Traceback" not in err
    assert out == ""


def test_a_reader_that_went_away_is_not_worth_a_word(tmp_path: Path) -> None:
    run_dir = str(tmp_path / "run")
    process = start("demo", "agent", "--json", "--answers", "4", "--seconds-scale", "0.001", "--run-dir", run_dir)
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 141
    assert "Traceback" not in err
    assert "roken" not in err


PLAN = ("plan", "prompts=8", "simulated_steps=11", "device={generation_s: 1, update_s: 1}", "--processes", "1")


def test_a_reader_of_a_table_that_went_away_is_not_worth_a_word_either() -> None:
    process = start(*PLAN)
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (141, "")


def test_a_full_disk_under_stdout_is_one_line(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        process = start(*PLAN, stdout=full.fileno())
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err == "rewardflow: the output could not be written: No space left on device\n"


def test_a_command_without_a_stdout_does_its_work_all_the_same(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    process = start(*PLAN, "--html", str(page), before=("sh", "-c", 'exec "$@" >&-', "sh"))
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert page.exists()


def test_an_interrupted_plan_does_not_wait_for_what_its_processes_simulate() -> None:
    process = start("plan", str(ROOT / "examples" / "original.yaml"), "simulated_steps=100000", "--processes", "2")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

    def num_at_work() -> int:
        """Counts the processes that have computed for two seconds: they have started long since."""
        used = [Path(f"/proc/{child}/stat").read_text().split()[13] for child in children.read_text().split()]
        return sum(int(ticks) >= 2 * os.sysconf("SC_CLK_TCK") for ticks in used)

    while num_at_work() < 2:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)  # the simulation itself would take hours
    assert process.returncode == 130
    assert err.endswith("rewardflow: interrupted\n")
