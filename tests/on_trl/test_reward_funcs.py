"""The agent as one of TRL's `reward_funcs`, in a real `GRPOTrainer`: what docs/from_trl.md says of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import transformers
import trl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import rewardflow as rf

torch.set_num_threads(1)

GROUP_SIZE = 4
WORDS = ("<pad>", "<eos>", *"0123456789=")


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A model of a few thousand weights that knows digits."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    folder = tmp_path / "model"
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
    transformers.Qwen2ForCausalLM(config).save_pretrained(folder)
    return str(folder)


def trained(model: str, folder: Path, reward_funcs: Any, *, steps: int = 2) -> trl.GRPOTrainer:
    numbers = [f"{number:03}" for number in range(16)]
    columns = {"prompt": [f"{one}=" for one in numbers], "ground_truth": numbers, "level": [1] * len(numbers)}
    trainer = trl.GRPOTrainer(
        model=model,
        reward_funcs=reward_funcs,
        args=trl.GRPOConfig(
            output_dir=str(folder / "out"),
            per_device_train_batch_size=4 * GROUP_SIZE,
            num_generations=GROUP_SIZE,
            max_completion_length=4,
            max_steps=steps,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            disable_tqdm=True,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
        ),
        train_dataset=datasets.Dataset.from_dict(columns),
    )
    trainer.train()
    return trainer


def logged(trainer: trl.GRPOTrainer, name: str) -> list[float]:
    return [line[name] for line in trainer.state.log_history if name in line]


async def judge(response: str, ground_truth: str, extra_info: dict[str, Any]) -> float:
    assert extra_info["level"] == 1
    return sum(given == wanted for given, wanted in zip(response, ground_truth, strict=False)) + 0.01 * len(response)


def test_every_completion_of_a_training_run_is_judged_once_by_the_agent(model: str, tmp_path: Path) -> None:
    agent = rf.RewardAgent(judge, max_concurrency=8)
    reward = agent.as_batch_function(group_size=GROUP_SIZE)
    trainer = trained(model, tmp_path, reward)
    verdicts = agent.statistics().verdicts
    reward.close()
    assert (verdicts.submitted, verdicts.scored, verdicts.delivered) == (32, 32, 8)
    assert len(logged(trainer, f"rewards/{reward.__name__}/mean")) == 2


def test_a_failed_verdict_is_left_out_of_trls_means(model: str, tmp_path: Path) -> None:
    async def half(rollout: rf.Rollout) -> float:
        if rollout.index % 2:
            raise rf.ServiceError("no such key", retryable=False)
        return 7.0

    reward = rf.RewardAgent(half).as_batch_function(group_size=GROUP_SIZE)
    trainer = trained(model, tmp_path, reward, steps=1)
    reward.close()
    assert logged(trainer, f"rewards/{reward.__name__}/mean") == [7.0]


def test_an_exception_in_a_function_of_trls_own_ends_its_run(model: str, tmp_path: Path) -> None:
    def broken(completions: Sequence[str], **columns: Any) -> list[float]:
        raise ValueError("nobody at home")

    with pytest.raises(ValueError, match="nobody at home"):
        trained(model, tmp_path, broken, steps=1)
