"""The command lines of the recipe async_reward_agent, as its documentation and its two scripts have them."""

from __future__ import annotations

from dataclasses import dataclass

DOCUMENTED_FSDP2 = (
    "actor_rollout_ref.actor.strategy=fsdp2",
    "custom_reward_function.path=/home/user/rewards/gsm8k.py",
    "custom_reward_function.name=Gsm8kAgent",
    "reward_model.reward_manager=batch",
    "reward_model.launch_reward_fn_async=True",
    "+mini_batch_pipeline=True",
)
DOCUMENTED_MEGATRON = (
    "actor_rollout_ref.actor.strategy=megatron",
    "custom_reward_function.path=/home/user/rewards/gsm8k.py",
    "custom_reward_function.name=compute_score",
    "reward_model.reward_manager=batch",
    "reward_model.launch_reward_fn_async=True",
    "+mini_batch_pipeline=True",
)
ALL_SETTINGS = (
    "data.reward_fn_key=source",
    "+max_concurrency=256",
    "actor_rollout_ref.actor.policy_loss.loss_mode=decoupled",
    "actor_rollout_ref.actor.policy_loss.behav_imp_weight_cap=5.0",
)
CONFIG_PATH = "/home/user/verl/trainer/config"
MEGATRON_CONFIG_NAME = "ppo_megatron_trainer.yaml"

# The recipe has two scripts, one for training and one for its own tests, each with two engines. These are their whole
# command lines, with files in places of our own.
_BOTH_SCRIPTS = (
    "data.train_files=/home/user/data/gsm8k/train.parquet",
    "data.val_files=/home/user/data/gsm8k/test.parquet",
    "data.truncation=error",
    "data.filter_overlong_prompts=True",
    "data.max_prompt_length=512",
    "actor_rollout_ref.rollout.n=5",
    "algorithm.adv_estimator=grpo",
    "algorithm.use_kl_in_reward=False",
    "actor_rollout_ref.model.path=/home/user/models/policy",
    "actor_rollout_ref.actor.optim.lr=1e-6",
    "actor_rollout_ref.actor.entropy_coeff=0",
    "actor_rollout_ref.rollout.enable_chunked_prefill=True",
    "trainer.logger=['console']",
    "trainer.project_name=verl-test",
    "trainer.experiment_name=async-reward-agent-minimal",
    "trainer.val_before_train=False",
    "trainer.resume_mode=disable",
    "trainer.nnodes=1",
    "trainer.n_gpus_per_node=8",
    "custom_reward_function.path=/home/user/rewards/gsm8k.py",
    "reward_model.reward_manager=batch",
    "reward_model.launch_reward_fn_async=True",
    "+mini_batch_pipeline=True",
)
_TRAINING = (
    *_BOTH_SCRIPTS,
    "data.max_response_length=1024",
    "data.train_batch_size=1024",
    "actor_rollout_ref.actor.use_kl_loss=True",
    "actor_rollout_ref.actor.kl_loss_coef=0.001",
    "actor_rollout_ref.actor.kl_loss_type=low_var_kl",
    "actor_rollout_ref.actor.ppo_mini_batch_size=256",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.6",
    "actor_rollout_ref.rollout.max_num_batched_tokens=8192",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=32",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32",
    "trainer.test_freq=5",
    "trainer.save_freq=20",
    "trainer.total_epochs=15",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
)
_TESTING = (
    *_BOTH_SCRIPTS,
    "data.max_response_length=512",
    "data.train_batch_size=64",
    "actor_rollout_ref.actor.use_kl_loss=False",
    "actor_rollout_ref.actor.kl_loss_coef=0.0",
    "actor_rollout_ref.actor.ppo_mini_batch_size=16",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.5",
    "actor_rollout_ref.rollout.temperature=1.0",
    "actor_rollout_ref.rollout.top_p=1.0",
    "actor_rollout_ref.rollout.top_k=-1",
    "actor_rollout_ref.rollout.val_kwargs.temperature=1.0",
    "actor_rollout_ref.rollout.val_kwargs.top_p=0.7",
    "actor_rollout_ref.rollout.val_kwargs.top_k=-1",
    "actor_rollout_ref.rollout.val_kwargs.do_sample=True",
    "actor_rollout_ref.rollout.val_kwargs.n=1",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
    "trainer.total_epochs=2",
    "trainer.total_training_steps=2",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
)
_ON_FSDP2 = (
    "actor_rollout_ref.actor.strategy=fsdp2",
    "critic.strategy=fsdp2",
    "actor_rollout_ref.model.use_remove_padding=True",
    "actor_rollout_ref.model.enable_gradient_checkpointing=True",
    "actor_rollout_ref.actor.fsdp_config.param_offload=False",
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload=False",
    "actor_rollout_ref.ref.fsdp_config.param_offload=True",
    "custom_reward_function.name=Gsm8kAgent",
)
_ON_MEGATRON = (
    "actor_rollout_ref.actor.strategy=megatron",
    "critic.strategy=megatron",
    "actor_rollout_ref.actor.megatron.param_offload=True",
    "actor_rollout_ref.actor.megatron.optimizer_offload=True",
    "actor_rollout_ref.actor.megatron.grad_offload=True",
    "actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=1",
    "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2",
    "actor_rollout_ref.ref.megatron.pipeline_model_parallel_size=1",
    "actor_rollout_ref.ref.megatron.tensor_model_parallel_size=2",
    "actor_rollout_ref.ref.megatron.param_offload=True",
    "custom_reward_function.name=compute_score_per_sample",
)


@dataclass(frozen=True, slots=True)
class Script:
    """One command line of a script. `config_name` is None where the script names none."""

    words: tuple[str, ...]
    config_name: str | None = None

    def options(self) -> list[str]:
        """Returns the options that the script gives before its settings."""
        named = [] if self.config_name is None else [f"--config-name={self.config_name}"]
        return [f"--config-path={CONFIG_PATH}", *named]


TRAINING_FSDP2 = Script((*_TRAINING, *_ON_FSDP2))
TRAINING_MEGATRON = Script((*_TRAINING, *_ON_MEGATRON), MEGATRON_CONFIG_NAME)
TESTING_FSDP2 = Script((*_TESTING, *_ON_FSDP2))
TESTING_MEGATRON = Script((*_TESTING, *_ON_MEGATRON), MEGATRON_CONFIG_NAME)
SCRIPTS = {
    "training on FSDP2": TRAINING_FSDP2,
    "training on Megatron": TRAINING_MEGATRON,
    "testing on FSDP2": TESTING_FSDP2,
    "testing on Megatron": TESTING_MEGATRON,
}
