"""verl's own loader and reward manager with the function over `rewardflow serve`: two workers, one limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

WORKER = Path(__file__).with_name("http_reward_worker.py")
JUDGE = """
import asyncio
running = most = 0

async def judge(solution_str):
    global running, most
    running += 1
    most = max(most, running)
    await asyncio.sleep(0.01)
    running -= 1
    return {"score": float(solution_str), "most": most} if most <= 1 else float("nan")
"""


def test_two_reward_workers_of_verl_get_the_servers_verdicts_under_one_limit_over_http_reward(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text(JUDGE)
    command = [sys.executable, "-m", "rewardflow", "serve", f"{tmp_path}/judge.py:judge", "--port", "0", "--json"]
    with subprocess.Popen([*command, "--max-concurrency", "1"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            environ = {**os.environ, "REWARDFLOW_URL": json.loads(server.stdout.readline())["url"]}
            workers = [
                subprocess.Popen(
                    [sys.executable, str(WORKER), str(first), "6"], stdout=subprocess.PIPE, text=True, env=environ
                )
                for first in (100, 200)
            ]
            answers = [json.loads(worker.communicate(timeout=600)[0].splitlines()[-1]) for worker in workers]
        finally:
            server.terminate()
    assert [answer["scores"] for answer in answers] == [[float(i + n) for i in range(6)] for n in (100, 200)]
