#!/usr/bin/env bash
# GSM8K with Qwen2.5-1.5B inside verl: verl's own settings, and rewardflow's at the end.
# Settings after the script's name are added: examples/verl/train.sh trainer.total_epochs=1 --dry-run
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

rewardflow verl \
    data.train_files="$HOME/data/gsm8k/train.parquet" \
    data.val_files="$HOME/data/gsm8k/test.parquet" \
    data.train_batch_size=256 \
    data.max_prompt_length=512 \
    data.max_response_length=512 \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-1.5B-Instruct \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16 \
    algorithm.adv_estimator=grpo \
    trainer.n_gpus_per_node=8 \
    trainer.nnodes=1 \
    trainer.total_epochs=3 \
    reward.custom_reward_function.path="$here/reward.py" \
    reward.custom_reward_function.name=compute_score \
    rewardflow.max_concurrency=256 \
    rewardflow.max_staleness=1 \
    rewardflow.run_dir=runs/verl \
    "$@"
