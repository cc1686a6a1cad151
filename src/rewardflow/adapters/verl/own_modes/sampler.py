"""verl's replay buffers for its own modes, which also say what judging took.

Always true: what is trained, and when, is what verl's buffer chooses, less the groups in which fewer than `min_group`
samples have a verdict: such a group is replaced where verl replaces failed groups, and left out where it does not,
because of a lone verdict verl would make an advantage. Every group that leaves is counted once. When the agent gives
up, so does the run. Loaded by verl only, by `trainer.v1.sampler.custom_sampler`.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import ray
import transfer_queue as tq
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from rewardflow.adapters.verl.job_agent import tally_name
from rewardflow.adapters.verl.judging_record import JudgingRecord
from rewardflow.adapters.verl.own_modes.judged_step import JudgedStep
from rewardflow.adapters.verl.own_modes.sample_tally import Tally
from rewardflow.adapters.verl.settings import settings_of
from rewardflow.adapters.verl.training.group_board import GroupReport
from rewardflow.errors import AgentHalted, FlowError

TOO_FEW = "too_few_verdicts"
EVICTED = "evicted_by_verl"
TRAINING = "train"


class _TellingBuffer(ReplayBuffer):
    """What both of verl's buffers get."""

    def __init__(self, *, trainer: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._trainer = trainer
        plain: Any = OmegaConf.to_container(trainer.config, resolve=True)
        self._settings = settings_of(plain)
        self._group_size = int(plain["actor_rollout_ref"]["rollout"]["n"])
        self._samples_a_step = int((self.trainer_config or {}).get("parameter_sync_step", 1))
        self._tally = ray.remote(Tally).options(name=tally_name(), num_cpus=0).remote()
        self._lifetime = contextlib.ExitStack()
        self._num_to_validate: int | None = None  # batches that are still to come when the last step is sampled
        self._record = self._open_record()
        self._judged: JudgedStep | None = None
        self._out_s = 0.0

    def _open_record(self) -> JudgingRecord | None:
        if self._settings.run_dir is None:
            return None
        return self._lifetime.enter_context(JudgingRecord.at(self._settings))

    # -- what verl calls ------------------------------------------------------------------------------------------

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        if partition_id != TRAINING:
            batch, metrics = super().sample(global_steps, partition_id, batch_size)
            self._take({_uid(key) for key in batch.keys})
            if self._num_to_validate is not None:
                self._end_record(self._num_to_validate - 1)
            return batch, metrics
        judged = self._of_step(global_steps)
        started_s = time.monotonic()
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        judged.sampled(time.monotonic() - started_s, batch.tags)
        if judged.num_samples < self._samples_a_step:  # verl takes means of what several samples of a step say
            return batch, metrics
        self._judged = None
        return batch, {**metrics, **self._told(judged)}

    def _sync_metadata_from_transfer_queue(self) -> None:
        reason = ray.get(self._tally.halted.remote())
        if reason is not None:
            raise AgentHalted(f"the reward agent gave up: {reason}")
        super()._sync_metadata_from_transfer_queue()

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        under_way = [*self.pending_keys[partition_id], *self.running_keys[partition_id]]
        started_s = time.monotonic()
        debug_time: float = super()._wait_for_next_poll(partition_id, last_debug_time)
        if partition_id == TRAINING and self._judged is not None:
            generated_for_s = ray.get(self._tally.generated_for_s.remote(under_way, self._group_size))
            self._judged.waited(time.monotonic() - started_s, generated_for_s=generated_for_s)
        return debug_time

    def _evict_terminal_groups(self, global_steps: int, partition_id: str, eviction_reasons: Any) -> Any:
        if partition_id == TRAINING:
            self._of_step(global_steps)  # verl may look for groups to evict before it samples
        return super()._evict_terminal_groups(global_steps, partition_id, eviction_reasons)

    def _clear_groups(self, partition_id: str, uids: set[str]) -> None:
        super()._clear_groups(partition_id, uids)
        if uids and self._judged is not None:
            self._judged.left(self._take(uids), dropped=EVICTED)

    def _materialize_batch(
        self, partition_id: str, selected_prompt_uids: list[str], partition_snapshot: dict[str, dict[str, Any]]
    ) -> KVBatchMeta:
        batch = super()._materialize_batch(partition_id, selected_prompt_uids, partition_snapshot)
        if partition_id != TRAINING or self._judged is None:
            return batch
        too_few = self._with_too_few(selected_prompt_uids, batch.keys)
        kept = [uid for uid in selected_prompt_uids if uid not in too_few]
        self._judged.left(self._take(kept))
        if not too_few:
            return batch
        self._judged.left(self._take(too_few), dropped=TOO_FEW)
        if not kept:
            account = self._judged.account
            raise FlowError(
                f"a step needs a group with enough verdicts, got none: {dict(account.failed)}, among them "
                f"{account.an_error}"
            )
        return _without(batch, too_few)

    # -- groups that cannot be trained ----------------------------------------------------------------------------

    def _with_too_few(self, uids: Iterable[str], keys: Iterable[str]) -> set[str]:
        """Those of the groups with samples that failed, and not enough that did not."""
        sessions: defaultdict[str, set[str]] = defaultdict(set)
        for key in keys:
            uid, session, _ = key.rsplit("_", 2)
            sessions[uid].add(session)
        failed = self.failure_keys[TRAINING]
        return {uid for uid in uids if uid in failed and len(sessions[uid]) < self._settings.min_group}

    # -- what is told ---------------------------------------------------------------------------------------------

    def _of_step(self, step: int) -> JudgedStep:
        if self._judged is None:
            is_colocated = self.trainer_mode != "separate_async"
            self._judged = JudgedStep(step, group_size=self._group_size, is_colocated=is_colocated)
        return self._judged

    def _told(self, judged: JudgedStep) -> dict[str, float]:
        out_s: float = ray.get(self._tally.out_s.remote())
        metrics = judged.metrics(verdicts_out_s=out_s - self._out_s)
        self._out_s = out_s
        if self._record is not None:
            self._record.left(judged.account.groups)
        if judged.account.step >= self._last_step:
            validates = self._trainer.config.trainer.test_freq > 0
            self._end_record(len(self._trainer.val_dataloader) if validates else 0)
        return metrics

    @property
    def _last_step(self) -> int:
        trainer = self._trainer
        return int(min(trainer.total_training_steps, trainer.steps_per_epoch * trainer.config.trainer.total_epochs))

    def _end_record(self, num_to_validate: int) -> None:
        """When nothing more will be sampled: verl tells no sampler when a run is over, and then kills its process."""
        self._num_to_validate = num_to_validate
        if num_to_validate == 0:
            self._lifetime.close()

    def _take(self, uids: Iterable[str]) -> list[GroupReport]:
        reports: list[GroupReport] = ray.get(self._tally.take.remote(list(uids)))
        return reports


class TellingReplayBuffer(_TellingBuffer):
    """For mode `sync`."""

    def _terminal_eviction_reasons(
        self, global_steps: int, partition_id: str
    ) -> tuple[set[str], set[str], set[str], Counter[float]]:
        """verl replaces failed groups that have no sample at all; these have too few."""
        stale, dapo, failed, counts = super()._terminal_eviction_reasons(global_steps, partition_id)
        if partition_id == TRAINING and self.sync_refill_failed_groups:
            failed = failed | self._with_too_few(self.failure_keys[TRAINING], self.partitions[TRAINING])
        return stale, dapo, failed, counts


class TellingReplayBufferAsync(_TellingBuffer, ReplayBufferAsync):
    """For verl's asynchronous modes, which replace every group with a failed sample."""


def replay_buffer(*, trainer_mode: str, refill_fn: Callable[[int], object], **kwargs: Any) -> _TellingBuffer:
    """The `custom_sampler` for all of verl's modes.

    verl gives a sampler of one's own less than it gives its own: what is missing is taken from the trainer whose method
    refills, by the same rules.
    """
    trainer: Any = getattr(refill_fn, "__self__", None)
    if trainer is None:
        raise FlowError(f"verl's trainer must refill by a method of its own, got {refill_fn!r}")
    config = trainer.config
    kwargs |= {
        "trainer_mode": trainer_mode,
        "refill_fn": refill_fn,
        "filter_groups_metric": trainer._resolve_filter_groups_metric(),
        "sync_refill_failed_groups": bool(config.trainer.v1.sampler.get("sync_refill_failed_groups", False)),
    }
    if trainer_mode != "sync":
        return TellingReplayBufferAsync(trainer=trainer, **kwargs)
    refills = kwargs["filter_groups_metric"] is not None or kwargs["sync_refill_failed_groups"]
    groups, data = config.algorithm.get("filter_groups", None) or {}, config.data
    return TellingReplayBuffer(
        trainer=trainer,
        train_batch_size=data.train_batch_size,
        gen_batch_size=1 if refills else data.get("gen_batch_size", None) or data.train_batch_size,
        max_inflight_gen_batches=groups.get("max_inflight_gen_batches", 1),
        **kwargs,
    )


def _without(batch: KVBatchMeta, uids: set[str]) -> KVBatchMeta:
    """The batch less these groups, whose rows are thrown away."""
    rows = list(zip(batch.keys, batch.tags, strict=True))
    unwanted = [key for key, _ in rows if _uid(key) in uids]
    if unwanted:
        tq.kv_clear(keys=unwanted, partition_id=TRAINING)
    kept = [(key, tag) for key, tag in rows if _uid(key) not in uids]
    return KVBatchMeta(partition_id=TRAINING, keys=[key for key, _ in kept], tags=[tag for _, tag in kept])


def _uid(key: str) -> str:
    """Of a key `uid_session_place`."""
    return key.rsplit("_", 2)[0]
