"""The command lines of the recipe async_reward_agent, as its documentation and its test script have them."""

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
