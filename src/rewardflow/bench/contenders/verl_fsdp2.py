"""verl's FSDP2 engine, as its trainer drives it: log-probs of the old policy, then one update. It does not generate.

Its micro-batches are by tokens, with verl's default of 16,384, and padding is left in, because taking it out needs
flash attention; torch.compile is off, which only makes its first steps slower here.
"""

from __future__ import annotations

import os
import time
from functools import partial
from importlib import import_module  # verl has no types here: loaded late, it is `Any`
from pathlib import Path
from typing import Any

from rewardflow.bench.contenders.turns import Spent, Turns, take_part
from rewardflow.bench.contenders.verl_cpu import register_cpu
from rewardflow.bench.contenders.workload import MODEL, Workload, read_prompts

_MAX_TOKENS = 16_384


def train(workload: Workload, folder: Path, turns: Turns) -> None:
    torch, distributed = import_module("torch"), import_module("torch.distributed")
    torch.set_num_threads(1)
    torch.manual_seed(workload.seed)
    # verl needs an address; the only rank has no peers, and a store in memory opens no port.
    os.environ.update(
        VERL_PLATFORM="cpu", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0"
    )
    register_cpu()
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    worker = _worker(workload, folder)
    prompts = _prompt_ids(folder)
    for step in range(workload.total_steps):
        first = step * workload.prompts_per_step
        turns.stepped(_train_step(worker, _batch(workload, prompts[first : first + workload.prompts_per_step])))
    distributed.destroy_process_group()


def _worker(workload: Workload, folder: Path) -> Any:
    config, workers = import_module("verl.workers.config"), import_module("verl.workers.engine_workers")
    actor = config.ActorConfig(strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=-1, use_torch_compile=False)
    worker = workers.TrainingWorker(
        workers.TrainingWorkerConfig(
            model_type="language_model",
            model_config=config.HFModelConfig(
                path=str(folder / MODEL),
                use_remove_padding=False,
                override_config={"attn_implementation": "sdpa"},
                enable_gradient_checkpointing=False,
            ),
            engine_config=config.FSDPEngineConfig(
                forward_only=False,
                fsdp_size=-1,
                strategy="fsdp2",
                use_dynamic_bsz=True,
                max_token_len_per_gpu=_MAX_TOKENS,
                infer_max_token_len_per_gpu=_MAX_TOKENS,
                use_torch_compile=False,
                model_dtype="float32",
                dtype="float32",
            ),
            optimizer_config=config.FSDPOptimizerConfig(lr=workload.lr, total_training_steps=workload.total_steps),
            checkpoint_config=None,
        )
    )
    worker.reset()
    worker.set_loss_fn(partial(import_module("verl.workers.utils.losses").ppo_loss, config=actor))
    return worker


def _train_step(worker: Any, batch: Any) -> Spent:
    padding, tensordicts = import_module("verl.workers.utils.padding"), import_module("verl.utils.tensordict_utils")
    began_s = time.perf_counter()
    rows = padding.left_right_2_no_padding(batch.to_tensordict())
    tensordicts.assign_non_tensor(rows, compute_loss=False)
    inferred = worker.infer_batch(rows)
    batch.batch["old_log_probs"] = padding.no_padding_2_padding(tensordicts.get(inferred, "log_probs").cpu(), rows)
    looked_s = time.perf_counter()
    rows = padding.left_right_2_no_padding(batch.to_tensordict())
    tensordicts.assign_non_tensor(rows, compute_loss=True, global_batch_size=rows.shape[0])
    worker.train_batch(rows)
    return Spent(log_probs_s=looked_s - began_s, update_s=time.perf_counter() - looked_s)


def _prompt_ids(folder: Path) -> list[list[int]]:
    tokenizer = import_module("transformers").PreTrainedTokenizerFast.from_pretrained(folder / MODEL)
    return [tokenizer.encode(prompt) for prompt in read_prompts(folder)]


def _batch(workload: Workload, prompts: list[list[int]]) -> Any:
    """Makes rollouts in verl's columns: prompts padded on the left, random responses, advantages as in a group."""
    torch, verl = import_module("torch"), import_module("verl")
    width = workload.longest_prompt
    left = torch.tensor([[0] * (width - len(ids)) + ids for ids in prompts]).repeat_interleave(workload.group_size, 0)
    is_prompt = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts])
    responses = torch.randint(4, 60, (len(left), workload.response_tokens))
    mask = torch.cat([is_prompt.repeat_interleave(workload.group_size, 0), torch.ones_like(responses)], 1)
    scores = torch.arange(workload.group_size).float()
    advantages = ((scores - scores.mean()) / scores.std()).repeat(len(prompts))
    batch = verl.DataProto.from_dict(
        tensors={
            "prompts": left,
            "responses": responses,
            "input_ids": torch.cat([left, responses], 1),
            "attention_mask": mask,
            "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
            "response_mask": torch.ones_like(responses),
            "advantages": advantages[:, None].expand(-1, workload.response_tokens).contiguous(),
        }
    )
    batch.meta_info.update(temperature=1.0, global_token_num=mask.sum(-1).tolist())
    return batch


if __name__ == "__main__":
    take_part(train, ("verl", "torch", "transformers"))
