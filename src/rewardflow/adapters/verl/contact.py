"""Names every piece of verl's inside that the adapter overrides or calls, with its fingerprint in the tested release.

Always true: the adapter uses no private name of verl that is not listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rewardflow.adapters.fingerprints import changed_pieces
from rewardflow.errors import FlowError

_TRAINER = "trainer/ppo/v1/trainer_base.py:PPOTrainer"
_BUFFER = "trainer/ppo/v1/replay_buffer.py:ReplayBuffer"
_LOOP = "trainer/ppo/v1/agent_loop_tq.py:AgentLoopWorkerTQ"
_WORKER = "workers/engine_workers.py:TrainingWorker"

# By file and name in verl's package, in verl 0.9.1.
FINGERPRINTS: Mapping[str, str] = {
    f"{_TRAINER}.__init__": "f25b62703ead",
    f"{_TRAINER}.init": "a11cb7f4308c",
    f"{_TRAINER}.fit": "5748d2517edf",
    f"{_TRAINER}.step": "7d50d7c2ff48",
    f"{_TRAINER}._step_once": "a562831a26e3",
    f"{_TRAINER}.prepare_step": "b0cc4d958211",
    f"{_TRAINER}.on_init_end": "7df493f2763b",
    f"{_TRAINER}.on_train_begin": "0770ecb15222",
    f"{_TRAINER}.on_sample_end": "b712cc6a3a88",
    f"{_TRAINER}.on_step_end": "d5b9e8184924",
    f"{_TRAINER}._build_replay_buffer": "2c6a72c51560",
    f"{_TRAINER}._resolve_filter_groups_metric": "e604f6ef9a62",
    f"{_TRAINER}._init_resource_pool_mgr": "7bd1041dc35e",
    f"{_TRAINER}._consume_sync_metrics": "f1f90d2672f2",
    f"{_TRAINER}._validate": "fb88072406e7",
    f"{_TRAINER}._save_checkpoint": "018368ba3a0a",
    f"{_TRAINER}._load_checkpoint": "fa4193cc3b56",
    f"{_TRAINER}._reissue_inflight_prompts": "26a185031354",
    f"{_TRAINER}._next_train_batch": "c31defcfb186",
    f"{_TRAINER}._submit_batch_to_rollout": "32ac1aee9bd1",
    f"{_TRAINER}._balance_batch": "c71e7d3427c3",
    f"{_TRAINER}._compute_old_log_prob": "ad1089169536",
    f"{_TRAINER}._compute_ref_log_prob": "c37d250df6b4",
    f"{_TRAINER}._compute_values": "d9e45a9c5327",
    f"{_TRAINER}._compute_advantage": "f3c6004bff7e",
    f"{_TRAINER}._update_critic": "0556aed8e072",
    f"{_TRAINER}._update_actor": "9cef4ff78107",
    f"{_TRAINER}._compute_metrics": "215905ed5953",
    f"{_TRAINER}._stop_rollout_profiling": "4c0f01e26903",
    f"{_BUFFER}.__init__": "2a5e275c76d1",
    f"{_BUFFER}.sample": "3a9338c087aa",
    f"{_BUFFER}._sync_metadata_from_transfer_queue": "799ec9c6b6ef",
    f"{_BUFFER}._wait_for_next_poll": "4659a8f204f6",
    f"{_BUFFER}._materialize_batch": "c07e603242c5",
    f"{_BUFFER}._clear_groups": "808267e66f97",
    f"{_BUFFER}._evict_terminal_groups": "1c86a83d5b6c",
    f"{_BUFFER}._terminal_eviction_reasons": "4f752f3dfe3c",
    "trainer/ppo/v1/replay_buffer.py:ReplayBufferAsync.sample": "78991e805e40",
    "trainer/ppo/v1/replay_buffer.py:ReplayBufferAsync._terminal_eviction_reasons": "2ed1d04204d3",
    f"{_LOOP}.__init__": "66eb9efc5289",
    f"{_LOOP}.generate_sequences": "a086ac69eb42",
    f"{_LOOP}._run_prompt": "515e57a7216a",
    f"{_LOOP}._agent_loop_postprocess": "e9ac873d20aa",
    "experimental/agent_loop/agent_loop.py:AgentLoopWorker._run_agent_loop": "215777bdd401",
    "experimental/agent_loop/agent_loop.py:AgentLoopWorker._compute_score": "76c420b8de6b",
    "trainer/ppo/v1/agent_loop_tq.py:AgentLoopManagerTQ.__init__": "886aa1da988f",
    "trainer/ppo/v1/agent_loop_tq.py:AgentLoopManagerTQ.generate_sequences": "dad1af8a0eb4",
    f"{_WORKER}.train_mini_batch": "284498019850",
    f"{_WORKER}.train_batch": "42ab7424eba5",
    f"{_WORKER}.set_loss_fn": "b8b106bc639f",
    f"{_WORKER}.to": "3e7b08e6baf8",
    "workers/engine_workers.py:ActorRolloutRefWorker.init_model": "9434acbd35c5",
    "workers/engine_workers.py:ActorRolloutRefWorker.update_actor": "45cd656b584c",
    "workers/engine_workers.py:ActorRolloutRefWorker.to": "d813f83e472d",
    "trainer/ppo/v1/trainer_base.py:register_trainer": "7b1137c0bdb5",
    "trainer/ppo/v1/utils.py:MetricsAggregator": "4fabb3b095b4",
    "trainer/ppo/core_algos.py:register_policy_loss": "d039e404d521",
    "trainer/ppo/core_algos.py:agg_loss": "e760c893f76c",
    "experimental/reward_loop/reward_manager/registry.py:register": "453c3e62f6b3",
    "experimental/reward_loop/reward_manager/base.py:RewardManagerBase": "f2ff2d749dae",
    "workers/utils/losses.py:ppo_loss": "389564a0ec55",
    "workers/utils/padding.py:response_to_nested": "e66ec0bae46f",
    "utils/tensordict_utils.py:list_of_dict_to_tensordict": "5493637e0b81",
}


def trainer_of(refill_fn: Callable[[int], object]) -> Any:
    """Returns verl's trainer for a custom sampler, to which verl passes only one of the trainer's methods."""
    trainer: Any = getattr(refill_fn, "__self__", None)
    if trainer is None:
        raise FlowError(f"verl's trainer must pass one of its methods as refill_fn, got {refill_fn!r}")
    return trainer


def num_ranks(worker_group: Any, mesh: str) -> int:
    """Returns the number of data-parallel ranks of a worker group that has been called before."""
    ranks: Mapping[str, list[int]] = worker_group._dispatch_info
    return max(ranks[mesh]) + 1


def drift(package: Path) -> list[str]:
    """Returns the pieces that differ from the tested release, each with what happened to it."""
    return changed_pieces(package, FINGERPRINTS)
