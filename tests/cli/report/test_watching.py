"""The command `rewardflow watch`: where it says it listens, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import orjson
import pytest
from written_runs import write_run

from rewardflow.cli.main import main

ROOT = Path(__file__).resolve().parents[3]


def test_it_says_where_it_listens_shows_the_runs_and_ends_when_interrupted(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "digits", steps=1)
    code = "import sys; from rewardflow.cli.main import main; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "watch", str(tmp_path / "runs"), "--port", "0", "--json"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    url = orjson.loads(process.stdout.readline())["url"]
    assert url.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(url, timeout=60) as response:
        assert b"digits" in response.read()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(tmp_path / "missing")]) == 2
    assert "a folder of runs" in capsys.readouterr().err
