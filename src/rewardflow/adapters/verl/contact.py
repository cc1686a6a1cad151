"""Holds every private name of verl that the adapter uses, with fingerprints of verl's code in the tested release.

A contact class stands in front of a class of verl's in the bases of one of ours. Where verl calls a private method, the
contact calls a public one, which by default does what verl does; a stage of verl's has a public name to call it by.

Always true: no other module of the adapter names a private name of verl; every private name here has its code listed in
`FINGERPRINTS`; importing this module imports nothing of verl, which takes many seconds and loads our parts in turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rewardflow.adapters.fingerprints import changed_pieces
from rewardflow.errors import FlowError

if TYPE_CHECKING:
    from transfer_queue import KVBatchMeta

    _Verls: TypeAlias = Any  # has verl's methods, as the class behind it has
else:
    _Verls = object

EvictionReasons: TypeAlias = tuple[set[str], set[str], set[str], Counter[float]]

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
    f"{_TRAINER}._val_metrics_update": "d44f9d82a019",
    f"{_TRAINER}._save_checkpoint": "018368ba3a0a",
    f"{_TRAINER}._load_checkpoint": "fa4193cc3b56",
    f"{_TRAINER}._reissue_inflight_prompts": "26a185031354",
    f"{_TRAINER}._next_train_batch": "c31defcfb186",
    f"{_TRAINER}._submit_batch_to_rollout": "32ac1aee9bd1",
    f"{_TRAINER}._add_prompts_to_generate": "6cf3a6550a43",
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
    "experimental/agent_loop/agent_loop.py:AgentLoopManager._init_agent_loop_workers": "2a0f1f7c3afb",
    "experimental/agent_loop/agent_loop.py:AgentLoopOutput": "aec82144a3e3",
    "single_controller/base/worker_group.py:WorkerGroup.__init__": "a7019027f0d5",
    "single_controller/base/decorator.py:dispatch_lazy_compute_data_proto": "d5a02771747a",
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
    "trainer/ppo/metric_utils.py:process_validation_metrics": "c4382db7d109",
    "utils/reward_score/__init__.py:default_compute_score": "cac5bbf5e84d",
    "utils/tensordict_utils.py:list_of_dict_to_tensordict": "5493637e0b81",
}


class TrainerContact(_Verls):
    """Stands in front of verl's `PPOTrainer`."""

    # -- verl calls these; a subclass may change them ------------------------------------------------------------

    def _build_replay_buffer(self) -> Any:
        return self.make_buffer()

    def make_buffer(self) -> Any:
        return super()._build_replay_buffer()

    def _init_resource_pool_mgr(self) -> None:
        self.choose_workers()

    def choose_workers(self) -> None:
        """Fills `role_worker_mapping`."""
        super()._init_resource_pool_mgr()

    def _validate(self) -> dict[str, float]:
        return self.validate()

    def validate(self) -> dict[str, float]:
        """Validates and returns the metrics."""
        metrics: dict[str, float] = super()._validate()
        return metrics

    def _val_metrics_update(
        self,
        data_sources: list[str],
        sample_uids: list[str],
        reward_extra_infos_dict: dict[str, list[Any]],
        sample_turns: list[int],
        expected_acc_counts: dict[tuple[str, str], int] | None = None,
    ) -> dict[str, float]:
        return self.metrics_of_validation(
            data_sources, sample_uids, reward_extra_infos_dict, sample_turns, expected_acc_counts
        )

    def metrics_of_validation(
        self,
        sources: list[str],
        uids: list[str],
        infos: dict[str, list[Any]],
        turns: list[int],
        expected: dict[tuple[str, str], int] | None,
    ) -> dict[str, float]:
        """Averages over the samples with a score. verl counts those that it expected beside them with `acc` 0."""
        metrics: dict[str, float] = super()._val_metrics_update(sources, uids, infos, turns, expected)
        return metrics

    def _save_checkpoint(self) -> None:
        self.save()

    def save(self) -> None:
        super()._save_checkpoint()

    def _consume_sync_metrics(self) -> dict[str, float]:
        return self.metrics_of_step()

    def metrics_of_step(self) -> dict[str, float]:
        """Returns what verl logs of a step beside the metrics of its stages."""
        metrics: dict[str, float] = super()._consume_sync_metrics()
        return metrics

    def _step_once(self, metrics: dict[str, Any], timing_raw: dict[str, float], sample_batch_size: int) -> KVBatchMeta:
        return self.take_through_stages(metrics, timing_raw, sample_batch_size)

    def take_through_stages(
        self, metrics: dict[str, Any], timing_raw: dict[str, float], sample_batch_size: int
    ) -> KVBatchMeta:
        """Samples a batch, takes it through all stages and returns it."""
        return super()._step_once(metrics, timing_raw, sample_batch_size)

    # -- verl's stages -------------------------------------------------------------------------------------------

    def next_prompts(self, count: int | None = None) -> Any:
        """Returns new prompts of the training data, as many as a step has by default."""
        return self._next_train_batch(count)

    def generate(self, prompts: Any) -> None:
        """Stores the prompts and starts their rollouts."""
        self._submit_batch_to_rollout(prompts)

    def balanced(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Orders rows so that ranks get equal work, with padding rows where verl needs them."""
        return self._balance_batch(batch, metrics=metrics)

    def take_old_log_probs(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> None:
        self._compute_old_log_prob(batch, metrics=metrics)

    def take_ref_log_probs(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> None:
        self._compute_ref_log_prob(batch, metrics=metrics)

    def take_values(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> None:
        self._compute_values(batch, metrics=metrics)

    def with_advantages(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        return self._compute_advantage(batch, metrics=metrics)

    def train_critic(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> None:
        self._update_critic(batch, metrics=metrics)

    def train_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> None:
        self._update_actor(batch, metrics=metrics)

    def stop_profiling_rollouts(self) -> None:
        self._stop_rollout_profiling()


class BufferContact(_Verls):
    """Stands in front of verl's `ReplayBuffer` or `ReplayBufferAsync`. A partition is `train` or `val`."""

    def _sync_metadata_from_transfer_queue(self) -> None:
        self.look()

    def look(self) -> None:
        """Reads which prompts and rows TransferQueue has, and how far they are."""
        super()._sync_metadata_from_transfer_queue()

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        return self.wait_before_next_look(partition_id, last_debug_time)

    def wait_before_next_look(self, partition_id: str, last_debug_time: float) -> float:
        """Returns when verl last logged what it waits for."""
        logged_s: float = super()._wait_for_next_poll(partition_id, last_debug_time)
        return logged_s

    def _terminal_eviction_reasons(self, global_steps: int, partition_id: str) -> EvictionReasons:
        return self.reasons_to_evict(global_steps, partition_id)

    def reasons_to_evict(self, global_steps: int, partition_id: str) -> EvictionReasons:
        """Returns the stale, the equal and the failed groups, and how many groups are equal at each value."""
        reasons: EvictionReasons = super()._terminal_eviction_reasons(global_steps, partition_id)
        return reasons

    def _evict_terminal_groups(self, global_steps: int, partition_id: str, eviction_reasons: EvictionReasons) -> Any:
        return self.evict(global_steps, partition_id, eviction_reasons)

    def evict(self, global_steps: int, partition_id: str, reasons: EvictionReasons) -> Any:
        return super()._evict_terminal_groups(global_steps, partition_id, reasons)

    def _clear_groups(self, partition_id: str, uids: set[str]) -> None:
        self.clear(partition_id, uids)

    def clear(self, partition_id: str, uids: set[str]) -> None:
        """Deletes groups with their rows."""
        super()._clear_groups(partition_id, uids)

    def _materialize_batch(
        self, partition_id: str, selected_prompt_uids: list[str], partition_snapshot: dict[str, dict[str, Any]]
    ) -> KVBatchMeta:
        return self.batch_of_prompts(partition_id, selected_prompt_uids, partition_snapshot)

    def batch_of_prompts(
        self, partition_id: str, uids: list[str], tags_by_key: dict[str, dict[str, Any]]
    ) -> KVBatchMeta:
        """Returns the rows of these prompts, which are done then."""
        return super()._materialize_batch(partition_id, uids, tags_by_key)


class AgentLoopContact(_Verls):
    """Stands in front of verl's `AgentLoopWorkerTQ`."""

    async def _run_prompt(
        self, prompt: dict[str, Any], sampling_params: Any, trajectory: Any, trace: bool = False
    ) -> None:
        await self.run_group(prompt, sampling_params, trajectory, trace)

    async def run_group(self, prompt: dict[str, Any], sampling_params: Any, trajectory: Any, trace: bool) -> None:
        """Generates and judges all rollouts of a prompt."""
        await super()._run_prompt(prompt, sampling_params, trajectory, trace)

    async def _run_agent_loop(self, sampling_params: Any, trajectory: Any, **kwargs: Any) -> Any:
        return await self.run_rollout(sampling_params, trajectory, **kwargs)

    async def run_rollout(self, sampling_params: Any, trajectory: Any, **kwargs: Any) -> Any:
        """Generates and judges one rollout."""
        return await super()._run_agent_loop(sampling_params, trajectory, **kwargs)

    async def _agent_loop_postprocess(self, output: Any, validate: bool, **kwargs: Any) -> None:
        await self.judge_and_store(output, validate, **kwargs)

    async def judge_and_store(self, output: Any, validate: bool, **kwargs: Any) -> None:
        """Asks for the score of a rollout, if it has none, and stores its rows."""
        await super()._agent_loop_postprocess(output, validate, **kwargs)

    async def _compute_score(self, outputs: Any, kwargs: dict[str, Any]) -> None:
        await self.score(outputs, kwargs)

    async def score(self, outputs: Any, fields: dict[str, Any]) -> None:
        """Gives the last output its score, if it has none."""
        await super()._compute_score(outputs, kwargs=fields)


@dataclass(frozen=True, slots=True)
class TrainerOfSampler:
    """What a custom sampler needs of verl's trainer, which passes it only `refill_fn`, a method of its own.

    verl makes the sampler before it has read its data, so the trainer's numbers are there later.
    """

    _trainer: Any

    @classmethod
    def found_by(cls, refill_fn: Callable[[int], object]) -> TrainerOfSampler:
        trainer: Any = getattr(refill_fn, "__self__", None)
        if trainer is None:
            raise FlowError(f"verl's trainer must pass one of its methods as refill_fn, got {refill_fn!r}")
        return cls(trainer)

    @property
    def config(self) -> Any:
        return self._trainer.config

    @property
    def filter_metric(self) -> str | None:
        """The metric of `algorithm.filter_groups`; None if no groups are filtered."""
        metric: str | None = self._trainer._resolve_filter_groups_metric()
        return metric

    @property
    def last_step(self) -> int:
        steps = self._trainer.steps_per_epoch * self._trainer.config.trainer.total_epochs
        return int(min(self._trainer.total_training_steps, steps))

    @property
    def num_validation_batches(self) -> int:
        return len(self._trainer.val_dataloader)


def num_ranks(worker_group: Any, mesh: str) -> int:
    """Returns the number of data-parallel ranks of a worker group that has been called before."""
    ranks: Mapping[str, list[int]] = worker_group._dispatch_info
    return max(ranks[mesh]) + 1


def drift(package: Path) -> list[str]:
    """Returns the pieces that differ from the tested release, each with what happened to it."""
    return changed_pieces(package, FINGERPRINTS)
