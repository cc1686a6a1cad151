"""`rewardflow serve` as a process: its first line, a verdict, and SIGTERM."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from rewardflow.cli.serve import run
from rewardflow.errors import InvalidInput

JUDGE = """
async def judge(solution_str):
    return float(len(solution_str))
"""


def test_a_file_with_a_section_serve_is_served_until_sigterm_and_the_journal_keeps_what_was_paid(
    tmp_path: Path,
) -> None:
    (tmp_path / "judge.py").write_text(JUDGE)
    (tmp_path / "judge.yaml").write_text("reward: judge.py:judge\nlimits: {journal: v.db}\nserve: {port: 0}\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "rewardflow", "serve", str(tmp_path / "judge.yaml"), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        body = json.dumps({"rollouts": [{"group_id": "g", "response": "abc"}]}).encode()
        request = urllib.request.Request(f"{url}/v1/score", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["verdicts"][0]["value"] == 3.0
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert (tmp_path / "v.db").exists()
    assert not (tmp_path / "v.db-wal").exists()  # closed in order


def test_a_reward_file_with_a_section_serve_still_scores(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text(JUDGE)
    (tmp_path / "judge.yaml").write_text("reward: judge.py:judge\nserve: {port: 0}\n")
    (tmp_path / "answers.jsonl").write_text('{"prompt": "p", "response": "abcd"}\n')
    out = tmp_path / "out.jsonl"
    command = ["score", str(tmp_path / "answers.jsonl"), "--reward", str(tmp_path / "judge.yaml"), "--out", str(out)]
    done = subprocess.run([sys.executable, "-m", "rewardflow", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "4.0" in out.read_text()


def test_a_reward_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"absent\.yaml: the file must exist"):
        run(argparse.Namespace(reward=str(tmp_path / "absent.yaml")))
    (tmp_path / "list.yaml").write_text("[1]")
    with pytest.raises(InvalidInput, match=r"list\.yaml: a reward file must be a mapping, got \[1\]"):
        run(argparse.Namespace(reward=str(tmp_path / "list.yaml")))
