"""A batch job that is killed and started again: over HTTP, with SQLite on disk, and a process that is really killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rewardflow.mock_judge import MockJudge, MockJudgeSettings
from rewardflow.reward.journal.reader import JournalReader

SRC = Path(__file__).resolve().parents[3] / "src"
NUM_ANSWERS = 40
INPUT_USD, OUTPUT_USD = 1.0, 2.0  # per million tokens


def write_job(folder: Path, judge: MockJudge, api: str, *, poll_s: float, cap_usd: float) -> None:
    (folder / "judge.yaml").write_text(
        f"reward: llm_judge\nmodel: mock-judge\nbase_urls: ['{judge.base_url}']\n"
        f"prices: {{input_usd_per_million: {INPUT_USD}, output_usd_per_million: {OUTPUT_USD}}}\n"
        f"batch: {{api: {api}, max_requests: {NUM_ANSWERS}, linger_s: 60, poll_s: {poll_s}}}\n"
        f"limits: {{max_cost_usd: {cap_usd}}}\n"
    )
    rows = ({"prompt": "What is 6 * 7?", "response": f"answer {i}"} for i in range(NUM_ANSWERS))
    (folder / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def start_score(folder: Path) -> subprocess.Popen[str]:
    code = "import sys; from rewardflow.cli.main import main; sys.exit(main())"
    command = ("score", "answers.jsonl", "--reward", "judge.yaml", "--out", "out.jsonl", "--json")
    return subprocess.Popen(
        [sys.executable, "-c", code, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until(is_so: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while not is_so():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)  # real time is the subject: another process works


def summary_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    told: dict[str, Any] = json.loads(out)
    return told


# The whole job may have 40 * 0.0017 USD in flight: with this cap it fits once and not twice.
CAP_USD = 0.1


@pytest.mark.parametrize(
    ("api", "lost_creations"),
    [("openai", 0), ("anthropic", 1)],
    ids=["openai, while the batch runs", "anthropic, between creation and its answer"],
)
def test_a_killed_batch_job_pays_for_nothing_twice_at_half_the_price_and_under_its_cap(
    api: str, lost_creations: int, tmp_path: Path
) -> None:
    settings = MockJudgeSettings(batch_latency="constant:3600", lost_creations=lost_creations)
    with MockJudge(settings) as judge:
        write_job(tmp_path, judge, api, poll_s=600 if lost_creations else 0.05, cap_usd=CAP_USD)
        first = start_score(tmp_path)
        wait_until(lambda: judge.statistics().batches == 1, first)
        if not lost_creations:
            wait_until(lambda: b"batch_0" in (tmp_path / "out.jsonl.journal.db.batches").read_bytes(), first)
        first.send_signal(signal.SIGKILL)
        first.communicate(timeout=60)

        judge.end_batches()
        write_job(tmp_path, judge, api, poll_s=0.02, cap_usd=CAP_USD)
        told = summary_of(start_score(tmp_path))
        asked = judge.statistics()

    assert (told["scored"], asked.batches) == (NUM_ANSWERS, 1)
    assert asked.admitted_again == {0: NUM_ANSWERS}
    full_usd = (asked.prompt_tokens * INPUT_USD + asked.completion_tokens * OUTPUT_USD) / 1e6
    assert told["run_cost_usd"] == pytest.approx(0.5 * full_usd)
    with JournalReader(tmp_path / "out.jsonl.journal.db") as reader:
        verdicts = list(reader.rows(scored_only=True))
    assert len(verdicts) == NUM_ANSWERS  # journaled one by one
    assert sum(row.cost_usd for row in verdicts) == pytest.approx(0.5 * full_usd)
