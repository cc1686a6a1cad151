"""A run that can be killed: what its process does, and the judge that counts its own calls.

Processes come from a fork server that has imported torch, so that a life costs no more than its run.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rewardflow.flow.schedule import Schedule
from rewardflow.policy.load_policy import load_policy  # noqa: F401  the fork server imports what runs need
from rewardflow.reward.journal.reader import JournalReader
from rewardflow.runtime.local import embedded
from rewardflow.settings.run_settings import (
    AlgorithmSettings,
    CheckpointSettings,
    DataSettings,
    GenerationSettings,
    RunSettings,
    TrainerSettings,
)

NUM_STEPS = 8
MAX_CALLS = 6  # at once
GROUPS, GROUP_SIZE = 4, 4
NUM_CALLS = NUM_STEPS * GROUPS * GROUP_SIZE

JUDGE = '''
import asyncio
import os
import pathlib
import zlib

import rewardflow as rf

CALLS = pathlib.Path(__file__).with_name("calls.txt")


async def judge(response, ground_truth, extra_info):
    """Takes a while, fails now and then, and appends each call to a file, in one write."""
    file = os.open(CALLS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{extra_info['group_uid']}\\t{response}\\n".encode())
    os.close(file)
    fate = zlib.crc32(f"{extra_info['group_uid']}{response}".encode())
    await asyncio.sleep(0.002 + 0.03 * (fate % 97) / 97)
    if fate % 11 == 0:
        raise rf.ServiceError("no verdict", retryable=False)
    return sum(a == b for a, b in zip(response, ground_truth)) - 0.01 * (fate % 13)
'''


def settings_of(folder: Path, **fields: Any) -> RunSettings:
    """Pipeline and one step off policy, in a fixed order, saved after every second step."""
    folder.mkdir(exist_ok=True)
    if not (folder / "judge.py").exists():
        (folder / "judge.py").write_text(JUDGE, "utf-8")
    defaults: dict[str, Any] = {
        "reward": f"{folder / 'judge.py'}:judge",
        "data": DataSettings(task="copy_digits", limit=11),
        "schedule": Schedule(
            groups_per_step=GROUPS, mini_batches=2, stream="mini_batch", max_staleness=1, order="fixed"
        ),
        "steps": NUM_STEPS,
        "run_dir": folder / "run",
        "limits": {"max_concurrency": MAX_CALLS, "outage_share": None},
        "generation": GenerationSettings(group_size=GROUP_SIZE, max_prompt_tokens=8, max_response_tokens=5),
        "algorithm": AlgorithmSettings(kl_coef=0.01),
        "trainer": TrainerSettings(lr=1e-3, lr_schedule="cosine", warmup_steps=2, threads=1),
        "checkpoint": CheckpointSettings(every=2),
    }
    return RunSettings(**{**defaults, **fields})


async def train(settings: RunSettings, **options: Any) -> Tensor:
    """The weights at the end."""
    async with embedded(settings, **{"probes": False, **options}) as run:
        await run.train()
        return torch.cat([weight.detach().flatten().clone() for weight in run.policy.model.parameters()])


def live(folder: Path) -> None:
    """One life of the run in the folder: from its last checkpoint to its end, unless it is killed."""
    torch.set_num_threads(1)
    weights = asyncio.run(train(settings_of(folder), resume=True))
    torch.save(weights, folder / "weights.pt")


@contextmanager
def fork_server() -> Iterator[Any]:
    """Gives a function that starts a life."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])

    def start(folder: Path) -> BaseProcess:
        process = context.Process(target=live, args=(folder,))
        process.start()
        return process

    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), before]))
    try:
        yield start
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


def num_calls_in(folder: Path) -> int:
    file = folder / "calls.txt"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def kill_after(process: BaseProcess, folder: Path, num_calls: int, delay_s: float) -> None:
    """Kill it a moment after the judge has been asked so often, by this life or those before."""
    while num_calls_in(folder) < num_calls and process.is_alive():
        time.sleep(0.001)
    time.sleep(delay_s)
    process.kill()
    process.join()


def verdicts_in(folder: Path) -> dict[tuple[Any, ...], Any]:
    """What was asked and answered, by place: the prompts of each step, the responses, the verdicts."""
    with JournalReader(folder / "run" / "journal.db") as journal:
        rows = list(journal.rows())
    found = {
        (row.step, row.group_id, row.index): (row.rollout["prompt"], row.rollout["response"], row.value, row.kind)
        for row in rows
    }
    assert len(found) == len(rows)
    return found
