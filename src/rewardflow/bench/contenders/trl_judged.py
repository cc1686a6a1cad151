"""Trains with TRL on a slow judge, in one of three ways, and writes what each step took and scored.

Always true: the ways differ in who makes the calls and in when TRL waits for them; model, data, seeds and TRL's
settings are the same.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module  # TRL has no types here: loaded late, it is `Any`
from pathlib import Path
from typing import Any

from rewardflow.bench.contenders.judged_workload import (
    DIGITS,
    MODEL,
    PLAIN,
    TRAINER,
    JudgedResult,
    JudgedWorkload,
    score,
)


def main(folder: Path) -> None:
    workload = JudgedWorkload.read(folder)
    kind = import_module("rewardflow.adapters.trl" if workload.way == TRAINER else "trl").GRPOTrainer
    torch, transformers = import_module("torch"), import_module("transformers")
    torch.set_num_threads(1)
    reward = _plain(workload) if workload.way == PLAIN else _agents(workload)
    ends_s: list[float] = []
    trainer = kind(
        model=transformers.AutoModelForCausalLM.from_pretrained(folder / MODEL, dtype=torch.float32),
        reward_funcs=reward,
        args=_arguments(workload, folder),
        train_dataset=import_module("datasets").Dataset.from_dict({"prompt": workload.prompts()}),
        processing_class=transformers.PreTrainedTokenizerFast.from_pretrained(folder / MODEL),
        callbacks=[_on_step_end(transformers, lambda: ends_s.append(time.perf_counter()))],
    )
    began_s = time.perf_counter()
    trainer.train()
    if workload.way != PLAIN:
        reward.close()
    JudgedResult(
        step_s=[end - start for start, end in zip([began_s, *ends_s], ends_s, strict=False)],
        rewards=[line["reward"] for line in trainer.state.log_history if "reward" in line],
        versions={name: importlib.metadata.version(name) for name in ("trl", "torch", "transformers")},
    ).write(folder)


def _plain(workload: JudgedWorkload) -> Any:
    """A reward function as people write it: a pool of threads, which wait for the judge."""
    pool = ThreadPoolExecutor(workload.calls_at_once)

    def one(prompt: str, completion: str) -> float:
        time.sleep(workload.delay_s(prompt, completion))
        return score(prompt, completion)

    def plain(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        return list(pool.map(one, prompts, completions))

    return plain


def _agents(workload: JudgedWorkload) -> Any:
    from rewardflow.reward.agent import RewardAgent

    async def judge(prompt: str, response: str) -> float:
        await asyncio.sleep(workload.delay_s(prompt, response))
        return score(prompt, response)

    agent = RewardAgent(judge, max_concurrency=workload.calls_at_once, timeout_s=None)
    return agent.as_batch_function(group_size=workload.group_size)


def _arguments(workload: JudgedWorkload, folder: Path) -> Any:
    return import_module("trl").GRPOConfig(
        output_dir=str(folder / "trl"),
        per_device_train_batch_size=workload.prompts_per_step * workload.group_size,
        num_generations=workload.group_size,
        max_completion_length=DIGITS + 1,
        max_steps=workload.steps,
        learning_rate=workload.lr,
        lr_scheduler_type="constant",
        seed=workload.seed,
        shuffle_dataset=False,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        disable_tqdm=True,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
    )


def _on_step_end(transformers: Any, stepped: Any) -> Any:
    def on_step_end(self: Any, args: Any, state: Any, control: Any, **others: Any) -> None:
        stepped()

    return type("OnStepEnd", (transformers.TrainerCallback,), {"on_step_end": on_step_end})()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
