"""verl's own reward loop as a yardstick, where verl is installed.

verl's `RewardLoopWorker` with its `naive` manager scores one batch as in training, but in this process and without
Ray: a task for each rollout slices the batch, decodes the response in a thread and awaits the reward function.

Always true: the yardstick has a figure only if verl scored every rollout; otherwise a warning says why.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import tempfile
import time
from importlib import import_module  # verl and what comes with it have no types here: loaded late, they are `Any`
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

RESPONSE = "an answer of the policy"  # short, which favours verl: it has to decode it
PROMPT_TOKENS = 16
REPEATS = 3  # the best counts: a slow moment of the yardstick would flatter our figure


def verl_verdicts_per_s(count: int) -> float | None:
    """Returns the most no-op verdicts a second of verl's `naive` reward manager, or None if verl cannot be used."""
    if importlib.util.find_spec("verl") is None:
        return None
    try:
        with tempfile.TemporaryDirectory() as folder:
            return asyncio.run(_best_rate(count, Path(folder)))
    except Exception as error:  # another release may fail in any way, and the other benchmarks must go on
        logger.warning(
            "verl is installed, but its reward loop is not the one known here: %s: %s", type(error).__name__, error
        )
        return None


async def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any]) -> float:
    """Scores 1.0 for an intact response, almost a no-op. verl finds it by this file's path and its name."""
    return float(solution_str == RESPONSE)


async def _best_rate(count: int, folder: Path) -> float:
    reward_loop = import_module("verl.experimental.reward_loop")
    batch = _batch(_save_tokenizer(folder), count)
    worker = reward_loop.RewardLoopWorker(_config(folder))
    return max([await _rate(worker, batch, count) for _ in range(REPEATS)])


async def _rate(worker: Any, batch: Any, count: int) -> float:
    began_s = time.perf_counter()
    outputs = await worker.compute_score_batch(batch)
    elapsed_s = time.perf_counter() - began_s
    scored = sum(output["reward_score"] == 1.0 for output in outputs)
    if scored != count:
        raise ValueError(f"verl must score every rollout 1.0: {scored} of {count} were")
    return count / elapsed_s


def _save_tokenizer(folder: Path) -> list[int]:
    """Saves a tokenizer of a few words where the worker loads it, and returns the response's tokens."""
    tokenizers, transformers = import_module("tokenizers"), import_module("transformers")
    vocabulary = {word: i for i, word in enumerate(["<unk>", "<eos>", *RESPONSE.split()])}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = {"unk_token": "<unk>", "eos_token": "<eos>", "pad_token": "<eos>"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)
    tokenizer.save_pretrained(folder)
    return [vocabulary[word] for word in RESPONSE.split()]


def _batch(response_ids: list[int], count: int) -> Any:
    """Makes `count` rollouts in the columns that verl's trainer passes to its reward loop."""
    np, torch, verl = import_module("numpy"), import_module("torch"), import_module("verl")
    prompts = torch.zeros(count, PROMPT_TOKENS, dtype=torch.long)
    responses = torch.tensor(response_ids).repeat(count, 1)
    both = torch.cat([prompts, responses], dim=1)
    columns = {
        "data_source": ["noop"] * count,
        "reward_model": [{"ground_truth": "", "style": "rule"} for _ in range(count)],
        "extra_info": [{"index": i} for i in range(count)],  # one dict each, because the manager writes into it
        "uid": [str(i) for i in range(count)],
    }
    return verl.DataProto.from_dict(
        tensors={
            "prompts": prompts,
            "responses": responses,
            "input_ids": both,
            "attention_mask": torch.ones_like(both),
            "position_ids": torch.arange(both.shape[1]).repeat(count, 1),
        },
        non_tensors={name: np.array(values, dtype=object) for name, values in columns.items()},
    )


def _config(tokenizer_folder: Path) -> Any:
    """Returns the part of verl's configuration that its reward loop worker reads."""
    return import_module("omegaconf").OmegaConf.create(
        {
            "actor_rollout_ref": {"model": {"path": str(tokenizer_folder), "tokenizer_path": None}},
            "reward": {
                "custom_reward_function": {"path": __file__, "name": compute_score.__name__},
                "reward_manager": {"source": "register", "name": "naive"},
                "reward_model": {"enable": False},
            },
        }
    )
