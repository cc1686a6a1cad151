"""TRL and a plain HTTP client on one server: they share its slots fairly, and each keeps its cap."""

from __future__ import annotations

import concurrent.futures
import json
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trl
from serving_process import ServingProcess

import rewardflow as rf

GROUP_SIZE, A_STEP, NUM_PLAIN = 4, 16, 60
TOKENS = {"TRL_TOKEN": "t" * 20, "PLAIN_TOKEN": "p" * 20}
SERVE = "{jobs: {trl: {token_env: TRL_TOKEN, max_cost_usd: 6.0}, plain: {token_env: PLAIN_TOKEN, max_cost_usd: 10.0}}}"
JUDGE = """
import asyncio, os

async def judge(solution_str):
    with open(os.environ["CALLS_FILE"], "ab", buffering=0) as calls:
        calls.write((solution_str if solution_str == "plain" else "trl").encode() + b"\\n")
    while not os.path.exists(os.environ["CALLS_FILE"] + ".open"):
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)  # slots are shared by time: of calls that take none, a busy machine's pauses would decide
    return float(len(solution_str))
"""


def ask(url: str, path: str, body: Any = None, *, token: str) -> Any:
    """Sends one request, as any program that knows HTTP can."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url + path, data, headers), timeout=300) as answer:
        return json.loads(answer.read())


def ask_plainly(url: str) -> Counter[str]:
    rollouts = [{"group_id": f"p{i}", "response": "plain"} for i in range(NUM_PLAIN)]
    verdicts: list[Any] = []
    while len(verdicts) < NUM_PLAIN:
        verdicts = ask(url, "/v1/score", {"rollouts": rollouts, "wait_s": 60}, token=TOKENS["PLAIN_TOKEN"])["verdicts"]
    return Counter(verdict["kind"] or "scored" for verdict in verdicts)


def open_when_both_wait(server: ServingProcess) -> None:
    """Lets the judge answer once the first generation and all plain requests are in the queue, or in a slot."""
    waiting = 0
    while waiting < A_STEP + NUM_PLAIN - 4:
        waiting = ask(server.url, "/v1/status", token=TOKENS["PLAIN_TOKEN"])["calls_waiting"]
        time.sleep(0.01)
    (server.folder / "calls.open").touch()


async def judged_by_the_server(response: str) -> float:
    raise AssertionError("the server has the reward")


def test_trl_and_a_plain_client_share_the_slots_of_a_server_and_each_keeps_its_cap(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REWARDFLOW_TOKEN", TOKENS["TRL_TOKEN"])
    (tmp_path / "server").mkdir()
    options = ("--max-concurrency", "4", "--call-cost-usd", "0.25")
    with (
        ServingProcess(tmp_path / "server", judge=JUDGE, serve=SERVE, env=TOKENS, options=options) as server,
        concurrent.futures.ThreadPoolExecutor() as threads,
    ):
        agent = rf.RewardAgent(judged_by_the_server, run="trl")
        reward = agent.as_batch_function(group_size=GROUP_SIZE, server=server.url)
        opened = threads.submit(open_when_both_wait, server)
        plain = threads.submit(ask_plainly, server.url)
        trainer = make(trl.GRPOTrainer, reward, steps=2)
        trainer.train()
        reward.close()
        opened.result()
        assert plain.result() == {"scored": 40, "budget": 20}
        calls = server.calls()
        spent = {name: ask(server.url, "/v1/spending", token=token)["spent_usd"] for name, token in TOKENS.items()}
    assert Counter(calls) == {"trl": 24, "plain": 40}
    assert spent == {"TRL_TOKEN": 6.0, "PLAIN_TOKEN": 10.0}
    first_generation = [place for place, name in enumerate(calls) if name == "trl"][:A_STEP]
    # From its first call on, which waits until its reservation is on disk, TRL has half of the slots, though the other
    # had asked for far more.
    assert first_generation[-1] - first_generation[0] < 2.5 * A_STEP
    assert calls[first_generation[0] : first_generation[-1]].count("plain") >= A_STEP // 2
