"""The command `rewardflow watch`: where it says it listens, and how it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from written_runs import write_run

from rewardflow.cli.main import main

ROOT = Path(__file__).resolve().parents[3]


@contextlib.contextmanager
def watching(folder: Path) -> Iterator[subprocess.Popen[str]]:
    code = "import sys; from rewardflow.cli.main import main; sys.exit(main())"
    with subprocess.Popen(
        [sys.executable, "-c", code, "watch", str(folder), "--port", "0", "--json"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def address_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    url: str = orjson.loads(process.stdout.readline())["url"]
    return url


def page_at(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as response:
        text: str = response.read().decode()
        return text


def test_it_says_where_it_listens_shows_the_runs_and_ends_when_interrupted(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "digits", steps=1)
    with watching(tmp_path / "runs") as process:
        url = address_of(process)
        assert url.startswith("http://127.0.0.1:")
        assert "digits" in page_at(url)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_it_waits_for_a_folder_that_the_first_run_has_yet_to_make(tmp_path: Path) -> None:
    with watching(tmp_path / "runs") as process:
        url = address_of(process)
        assert "There is no run here yet" in page_at(url)
        write_run(tmp_path / "runs" / "digits", steps=1)
        assert "digits" in page_at(url)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert "there is no folder" in err


def test_a_file_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("")
    assert main(["watch", str(tmp_path / "notes.txt")]) == 2
    assert "a folder of runs" in capsys.readouterr().err
