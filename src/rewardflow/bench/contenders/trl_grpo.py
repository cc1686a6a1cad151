"""TRL's `GRPOTrainer` with its defaults: generation by transformers, one update a step, no reference model.

These settings differ, all in its favour here: one device batch for the whole step, float32, no gradient checkpointing
and no logging.
"""

from __future__ import annotations

import time
from importlib import import_module  # TRL has no types here: loaded late, it is `Any`
from pathlib import Path
from typing import Any

from rewardflow.bench.contenders.turns import Spent, Turns, take_part
from rewardflow.bench.contenders.workload import MODEL, Workload, read_prompts


def train(workload: Workload, folder: Path, turns: Turns) -> None:
    torch, transformers, trl = import_module("torch"), import_module("transformers"), import_module("trl")
    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / MODEL, dtype=torch.float32)
    generation = _Timed(model.generate)
    model.generate = generation
    trainer = trl.GRPOTrainer(
        model=model,
        reward_funcs=_score,
        args=_arguments(workload, folder, trl),
        train_dataset=_dataset(folder),
        processing_class=transformers.PreTrainedTokenizerFast.from_pretrained(folder / MODEL),
        callbacks=[_on_step_end(transformers, lambda: turns.stepped(Spent(generate_s=generation.take_s())))],
    )
    trainer.train()


class _Timed:
    """Calls a function and adds up the seconds of its calls."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._total_s = 0.0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        began_s = time.perf_counter()
        try:
            return self._function(*args, **kwargs)
        finally:
            self._total_s += time.perf_counter() - began_s

    def take_s(self) -> float:
        """Returns the seconds spent in the function since this method was last called."""
        total_s, self._total_s = self._total_s, 0.0
        return total_s


def _score(completions: list[str], **columns: Any) -> list[float]:
    """Scores without cost, and differently within a group, so that every response has an advantage."""
    return [float(index % 8) for index in range(len(completions))]


def _arguments(workload: Workload, folder: Path, trl: Any) -> Any:
    return trl.GRPOConfig(
        output_dir=str(folder / "trl"),
        per_device_train_batch_size=workload.prompts_per_step * workload.group_size,
        num_generations=workload.group_size,
        max_completion_length=workload.response_tokens,
        max_steps=workload.total_steps,
        learning_rate=workload.lr,
        lr_scheduler_type="constant",
        seed=workload.seed,
        shuffle_dataset=False,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
    )


def _dataset(folder: Path) -> Any:
    return import_module("datasets").Dataset.from_dict({"prompt": read_prompts(folder)})


def _on_step_end(transformers: Any, stepped: Any) -> Any:
    def on_step_end(self: Any, args: Any, state: Any, control: Any, **others: Any) -> None:
        stepped()

    return type("OnStepEnd", (transformers.TrainerCallback,), {"on_step_end": on_step_end})()


if __name__ == "__main__":
    take_part(train, ("trl", "torch", "transformers"))
