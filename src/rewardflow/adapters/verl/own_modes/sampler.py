"""verl's replay buffers for its own modes, which also measure the judging.

Always true: verl's buffer chooses what is trained and when. Groups in which fewer than `min_group` samples have a
verdict are replaced where verl replaces failed groups, and left out elsewhere: verl would make an advantage of a lone
verdict. Every group that leaves counts once. When the agent gives up, the run ends. Loaded by verl only, through
`trainer.v1.sampler.custom_sampler`.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from rewardflow.adapters.verl.accounting.board_actor import BoardActor, board_of_samples
from rewardflow.adapters.verl.accounting.group_report import GroupReport
from rewardflow.adapters.verl.accounting.own_numbers import OwnNumbers
from rewardflow.adapters.verl.accounting.run_files import JudgingRecord
from rewardflow.adapters.verl.accounting.step_metrics import TOO_FEW_VERDICTS
from rewardflow.adapters.verl.contact import BufferContact, EvictionReasons, TrainerOfSampler
from rewardflow.adapters.verl.own_modes.sampled_step import SampledStep
from rewardflow.adapters.verl.settings import settings_of
from rewardflow.adapters.verl.stored_rows import TRAINING, batch_of, delete_rows, rows_of
from rewardflow.adapters.verl.verl_rows import session_of, uid_of
from rewardflow.adapters.verl.versions import check_version, installed_version
from rewardflow.errors import FlowError

if TYPE_CHECKING:
    from transfer_queue import KVBatchMeta

EVICTED = "evicted_by_verl"


class _MeasuringBuffer(BufferContact, ReplayBuffer):
    """Adds measuring and `min_group` to one of verl's buffers."""

    def __init__(self, *, trainer: TrainerOfSampler, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._trainer = trainer
        plain: Any = OmegaConf.to_container(trainer.config, resolve=True)
        self._settings = settings_of(plain)
        check_version(installed_version(), allow_untested=self._settings.allow_untested_verl)
        self._group_size = int(plain["actor_rollout_ref"]["rollout"]["n"])
        self._samples_a_step = int((self.trainer_config or {}).get("parameter_sync_step", 1))
        self._board = BoardActor(board_of_samples())
        self._lifetime = contextlib.ExitStack()
        self._num_to_validate: int | None = None  # batches still to come, once the last step is sampled
        self._record = self._open_record()
        self._step: SampledStep | None = None
        self._own_numbers = OwnNumbers()

    def _open_record(self) -> JudgingRecord | None:
        if self._settings.run_dir is None:
            return None
        return self._lifetime.enter_context(JudgingRecord.at(self._settings))

    # -- what verl calls ------------------------------------------------------------------------------------------

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        if partition_id != TRAINING:
            batch, metrics = super().sample(global_steps, partition_id, batch_size)
            self._take({uid_of(key) for key in batch.keys})
            if self._num_to_validate is not None:
                self._end_record(self._num_to_validate - 1)
            return batch, metrics
        step = self._step_of(global_steps)
        started_s = time.monotonic()
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        step.sampled(time.monotonic() - started_s, batch.tags)
        if step.num_samples < self._samples_a_step:  # verl averages the metrics of a step's samples
            return batch, metrics
        self._step = None
        return batch, {**metrics, **self._metrics_of(step)}

    def look(self) -> None:
        self._board.ask("raise_if_halted")
        super().look()

    def wait_before_next_look(self, partition_id: str, last_debug_time: float) -> float:
        under_way = [*self.pending_keys[partition_id], *self.running_keys[partition_id]]
        started_s = time.monotonic()
        debug_time = super().wait_before_next_look(partition_id, last_debug_time)
        if partition_id == TRAINING and self._step is not None:
            generated_for_s = self._board.ask("generated_for_s", under_way, self._group_size)
            self._step.waited(time.monotonic() - started_s, generated_for_s=generated_for_s)
        return debug_time

    def evict(self, global_steps: int, partition_id: str, reasons: EvictionReasons) -> Any:
        if partition_id == TRAINING:
            self._step_of(global_steps)  # verl may look for groups to evict before it samples
        return super().evict(global_steps, partition_id, reasons)

    def clear(self, partition_id: str, uids: set[str]) -> None:
        super().clear(partition_id, uids)
        if uids and self._step is not None:
            self._step.left(self._take(uids), dropped=EVICTED)

    def batch_of_prompts(
        self, partition_id: str, uids: list[str], tags_by_key: dict[str, dict[str, Any]]
    ) -> KVBatchMeta:
        batch = super().batch_of_prompts(partition_id, uids, tags_by_key)
        if partition_id != TRAINING or self._step is None:
            return batch
        too_few = self._with_too_few(uids, batch.keys)
        kept = [uid for uid in uids if uid not in too_few]
        self._step.left(self._take(kept))
        if not too_few:
            return batch
        self._step.left(self._take(too_few), dropped=TOO_FEW_VERDICTS)
        if not kept:
            raise FlowError(self._step.record.why_nothing_trains(self._settings.min_group))
        delete_rows([key for key in batch.keys if uid_of(key) in too_few])
        return batch_of([(key, tag) for key, tag in rows_of(batch) if uid_of(key) not in too_few])

    # -- groups that cannot be trained ----------------------------------------------------------------------------

    def _with_too_few(self, uids: Iterable[str], keys: Iterable[str]) -> set[str]:
        """Returns the groups with failed samples and too few others."""
        sessions: defaultdict[str, set[str]] = defaultdict(set)
        for key in keys:
            sessions[uid_of(key)].add(session_of(key))
        failed = self.failure_keys[TRAINING]
        return {uid for uid in uids if uid in failed and len(sessions[uid]) < self._settings.min_group}

    # -- measuring ------------------------------------------------------------------------------------------------

    def _step_of(self, step: int) -> SampledStep:
        if self._step is None:
            is_colocated = self.trainer_mode != "separate_async"
            self._step = SampledStep(step, group_size=self._group_size, is_colocated=is_colocated)
        return self._step

    def _metrics_of(self, step: SampledStep) -> dict[str, float]:
        metrics = {
            **self._own_numbers.metrics(step.record.rewards),
            **step.metrics(outstanding_s=self._board.ask("take_outstanding_s")),
        }
        if self._record is not None:
            self._record.left(step.record.groups)
        if step.record.step >= self._trainer.last_step:
            validates = self._trainer.config.trainer.test_freq > 0
            self._end_record(self._trainer.num_validation_batches if validates else 0)
        return metrics

    def _end_record(self, num_to_validate: int) -> None:
        """Closes the record when no batch is left: verl does not tell a sampler that a run is over, but kills it."""
        self._num_to_validate = num_to_validate
        if num_to_validate == 0:
            self._lifetime.close()

    def _take(self, uids: Iterable[str]) -> list[GroupReport]:
        reports: list[GroupReport] = self._board.ask("take", list(uids))
        return reports


class MeasuringReplayBuffer(_MeasuringBuffer):
    """For mode `sync`."""

    def reasons_to_evict(self, global_steps: int, partition_id: str) -> EvictionReasons:
        """Adds groups with too few samples to the failed groups that verl replaces, which have none."""
        stale, dapo, failed, counts = super().reasons_to_evict(global_steps, partition_id)
        if partition_id == TRAINING and self.sync_refill_failed_groups:
            failed = failed | self._with_too_few(self.failure_keys[TRAINING], self.partitions[TRAINING])
        return stale, dapo, failed, counts


class MeasuringReplayBufferAsync(_MeasuringBuffer, ReplayBufferAsync):
    """For verl's asynchronous modes, which replace every group with a failed sample."""


def replay_buffer(*, trainer_mode: str, refill_fn: Callable[[int], object], **kwargs: Any) -> _MeasuringBuffer:
    """Makes the sampler for any of verl's own modes: `trainer.v1.sampler.custom_sampler` names this function.

    verl passes a custom sampler fewer arguments than its own sampler. The others are taken from the trainer that
    `refill_fn` is a method of, by verl's rules.
    """
    trainer = TrainerOfSampler.found_by(refill_fn)
    config = trainer.config
    kwargs |= {
        "trainer_mode": trainer_mode,
        "refill_fn": refill_fn,
        "filter_groups_metric": trainer.filter_metric,
        "sync_refill_failed_groups": bool(config.trainer.v1.sampler.get("sync_refill_failed_groups", False)),
    }
    if trainer_mode != "sync":
        return MeasuringReplayBufferAsync(trainer=trainer, **kwargs)
    refills = kwargs["filter_groups_metric"] is not None or kwargs["sync_refill_failed_groups"]
    groups, data = config.algorithm.get("filter_groups", None) or {}, config.data
    return MeasuringReplayBuffer(
        trainer=trainer,
        train_batch_size=data.train_batch_size,
        gen_batch_size=1 if refills else data.get("gen_batch_size", None) or data.train_batch_size,
        max_inflight_gen_batches=groups.get("max_inflight_gen_batches", 1),
        **kwargs,
    )
