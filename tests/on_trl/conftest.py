"""A model of a few thousand weights, and short runs of TRL's trainers with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import transformers
import trl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

torch.set_num_threads(1)

GROUP_SIZE = 4
WORDS = ("<pad>", "<eos>", *"0123456789=")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Knows digits."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>"
    ).save_pretrained(folder)
    config = transformers.Qwen2Config(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    transformers.Qwen2ForCausalLM(config).save_pretrained(folder)
    return str(folder)


def rows(count: int) -> datasets.Dataset:
    numbers = [f"{number:03}" for number in range(count)]
    columns = {"prompt": [f"{one}=" for one in numbers], "ground_truth": numbers, "level": [1] * count}
    return datasets.Dataset.from_dict(columns)


Make = Callable[..., Any]


@pytest.fixture
def make(model: str, tmp_path: Path) -> Make:
    """Makes a trainer of 4 prompts a generation: `make(trainer class, reward functions, steps=2, **settings)`."""

    def trainer(
        kind: Any,
        reward_funcs: Any,
        *,
        steps: int = 2,
        prompts: int = 16,
        held_out: int = 0,
        callbacks: Any = None,
        is_stream: bool = False,
        **settings: Any,
    ) -> Any:
        chosen = {
            "output_dir": str(tmp_path / "out"),
            "per_device_train_batch_size": 4 * GROUP_SIZE,
            "per_device_eval_batch_size": 4 * GROUP_SIZE,
            "num_generations": GROUP_SIZE,
            "max_completion_length": 4,
            "max_steps": steps,
            "learning_rate": 1e-2,
            "gradient_checkpointing": False,
            "bf16": False,
            "use_cpu": True,
            "disable_tqdm": True,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "dataloader_pin_memory": False,
        }
        return kind(
            model=model,
            reward_funcs=reward_funcs,
            args=trl.GRPOConfig(**(chosen | settings)),
            train_dataset=rows(prompts).to_iterable_dataset() if is_stream else rows(prompts),
            eval_dataset=rows(prompts + held_out).select(range(prompts, prompts + held_out)) if held_out else None,
            callbacks=callbacks,
        )

    return trainer


@pytest.fixture
def logged() -> Callable[[Any, str], list[float]]:
    """What a trainer logged under a name, step by step."""
    return lambda trainer, name: [line[name] for line in trainer.state.log_history if name in line]
