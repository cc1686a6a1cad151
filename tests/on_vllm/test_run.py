"""A whole run from the command line, with vLLM generating: the mini-batch pipeline with one-step staleness."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from engine_at_work import HIDDEN

from rewardflow.policy.load_policy import load_policy
from rewardflow.settings.run_settings import PolicySettings

RUN = """
reward: reward.py:compute_score
data: {task: copy_digits, num_digits: 2}
steps: 40
run_dir: run
schedule: {groups_per_step: 32, mini_batches: 2, stream: mini_batch, max_staleness: 1}
policy: {model: ./policy}
generation: {engine: vllm, group_size: 8, max_prompt_tokens: 16, max_response_tokens: 4}
trainer: {lr: 1e-3, threads: 1}
vllm: {eager: true, kv_cache_gb: 0.2}
"""
REWARD = """
import asyncio


async def compute_score(solution_str, ground_truth):
    await asyncio.sleep(0.02)
    return sum(a == b for a, b in zip(solution_str, ground_truth)) / max(len(solution_str), len(ground_truth))
"""


def train(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rewardflow", "train", "run.yaml", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def prepare(folder: Path) -> None:
    policy = load_policy(PolicySettings(tiny_hidden=HIDDEN), seed=0)
    policy.model.save_pretrained(folder / "policy")
    policy.tokenizer.save_pretrained(folder / "policy")
    (folder / "run.yaml").write_text(RUN, "utf-8")
    (folder / "reward.py").write_text(REWARD, "utf-8")


def metrics_in(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text("utf-8").splitlines()]


def test_a_run_learns_is_stale_by_one_step_and_its_engine_agrees_with_its_trainer(tmp_path: Path) -> None:
    prepare(tmp_path)
    ended = train(tmp_path, "--json")
    assert ended.returncode == 0, ended.stderr[-4000:]
    json.loads(ended.stdout)  # vLLM says nothing there
    steps = metrics_in(tmp_path)
    assert [step["step"] for step in steps] == list(range(40))
    assert [step["staleness_max"] for step in steps] == [0, *[1] * 39]
    scores = [step["score_mean"] for step in steps]
    assert sum(scores[-5:]) / 5 > sum(scores[:5]) / 5 + 0.1
    assert steps[0]["engine_diff_max"] < 1e-4  # probabilities under the same weights


def test_a_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    prepare(tmp_path)
    first = train(tmp_path, "--json", "steps=3", "checkpoint.every=1")
    assert first.returncode == 0, first.stderr[-4000:]
    second = train(tmp_path, "--json", "--resume", "steps=5", "checkpoint.every=1")
    assert second.returncode == 0, second.stderr[-4000:]
    assert [step["step"] for step in metrics_in(tmp_path)] == list(range(5))
