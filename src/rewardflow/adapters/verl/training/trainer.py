"""Trainer mode `rewardflow` of verl's v1 trainer: the colocated schedules that verl lacks.

Always true: version max(0, s - 1 - max_staleness) generates step s, where step 1 makes version 1; nothing is generated
between a step's first update and its publishing; a mini-batch holds whole groups, in the order of their prompts or,
with `order: completion`, of their verdicts, and a token weighs the same in each; old and reference log-probs are taken
before the step's first update, while verdicts are outstanding; a sample without a verdict enters no sum and no mean.
verl's own code does all the computing, on any of verl's engines.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ray
from omegaconf import OmegaConf, open_dict
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_base import PPOTrainer, register_trainer
from verl.trainer.ppo.v1.utils import MetricsAggregator
from verl.utils import tensordict_utils as tu
from verl.utils.debug import marked_timer

from rewardflow.adapters.verl.accounting.board_actor import BOARD_KEY, BoardActor
from rewardflow.adapters.verl.accounting.group_report import GroupReport
from rewardflow.adapters.verl.accounting.own_numbers import OwnNumbers
from rewardflow.adapters.verl.accounting.run_files import RunFiles
from rewardflow.adapters.verl.accounting.step_metrics import TOO_FEW_VERDICTS, VerlStepRecord
from rewardflow.adapters.verl.config_checks import check_mode, engine_of
from rewardflow.adapters.verl.contact import num_ranks
from rewardflow.adapters.verl.job_agent import agent_for_job
from rewardflow.adapters.verl.settings import SECTION, settings_of
from rewardflow.adapters.verl.stored_rows import (
    add_behaviour_weights,
    batch_of,
    delete_rows,
    fill_padding,
    keys_with_verdict,
    real_rows,
    rows_by_group,
    rows_of,
)
from rewardflow.adapters.verl.training.group_filter import (
    EQUAL_SCORES,
    MAX_BATCHES,
    GroupFilter,
    is_restored,
    num_verdicts,
)
from rewardflow.adapters.verl.training.mini_batches import AGGREGATION, MiniBatch, MiniBatchCutter
from rewardflow.adapters.verl.training.replay_buffer import BoardReplayBuffer
from rewardflow.adapters.verl.training.step_order import StepQueue, interleaved, num_ready, restored_steps
from rewardflow.adapters.verl.training.trainer_usage import TrainerUsage
from rewardflow.adapters.verl.training.training_worker import (
    TOKEN_SHARES,
    UPDATED_AT,
    StepwiseActorRolloutRefWorker,
    StepwiseTrainingWorker,
)
from rewardflow.adapters.verl.verl_rows import POSITION_FIELD
from rewardflow.adapters.verl.versions import check_version, installed_version
from rewardflow.errors import FlowError

if TYPE_CHECKING:
    from transfer_queue import KVBatchMeta

# A name, not an import: a worker that loads the class first would find this module importing a half-made module.
AGENT_LOOP_MANAGER = "rewardflow.adapters.verl.training.agent_loop.RewardflowAgentLoopManager"


@register_trainer(SECTION)
class RewardflowTrainer(PPOTrainer):
    """Generates and trains on the same devices, in turns."""

    def __init__(self, config: Any) -> None:
        plain: Any = OmegaConf.to_container(config, resolve=True)
        check_mode(plain)
        self._settings = settings_of(plain)
        check_version(installed_version(), allow_untested=self._settings.allow_untested_verl)
        self._is_decoupled = plain["actor_rollout_ref"]["actor"]["policy_loss"]["loss_mode"] == "decoupled"
        self._groups_per_update = plain["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"]
        self._groups_per_call = self._groups_per_update
        if self._settings.stream == "batch":
            self._groups_per_call = plain["data"]["train_batch_size"]
        self._filter = _filter_of(plain["algorithm"].get("filter_groups") or {})
        self._own_numbers = OwnNumbers()
        self._board = BoardActor()
        with open_dict(config):
            config[BOARD_KEY] = self._board.name
            config.actor_rollout_ref.rollout.agent.agent_loop_manager_class = AGENT_LOOP_MANAGER
        self._open = StepQueue()
        self._generating = contextlib.ExitStack()  # from admission until everything is generated
        self._lifetime = contextlib.ExitStack()
        self._files: RunFiles | None = None
        super().__init__(config)

    # -- what verl builds -----------------------------------------------------------------------------------------

    def _build_replay_buffer(self) -> BoardReplayBuffer:
        return BoardReplayBuffer(
            board=self._board,
            trainer_mode=self.trainer_mode,
            trainer_config={},
            max_off_policy_threshold=None,
            max_off_policy_strategy="wait",
            sampler_kwargs={},
        )

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in self.role_worker_mapping:
            worker = StepwiseTrainingWorker if role == Role.Critic else StepwiseActorRolloutRefWorker
            self.role_worker_mapping[role] = ray.remote(worker)

    def init(self) -> None:
        """Starts the agent first, so that a reward that cannot be loaded fails before any model is loaded."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(agent_for_job(self._settings))
            if self._settings.run_dir is not None:
                self._files = stack.enter_context(RunFiles.at(self._settings))
            self._usage = TrainerUsage(None if self._files is None else self._files.devices)
            super().init()
            self._lifetime = stack.pop_all()

    def fit(self, agent_loop_manager: Any) -> None:
        self._board.depend_on(agent_loop_manager.lifelines())
        with self._lifetime:
            super().fit(agent_loop_manager)

    # -- verl's hooks ---------------------------------------------------------------------------------------------

    def on_init_end(self) -> None:
        self.checkpoint_manager.update_weights(self.global_steps)

    def on_train_begin(self) -> None:
        self._reopen(self.global_steps)
        self._usage.take(outstanding_s=0.0)
        self._start_generating(self.global_steps)

    def on_sample_end(self) -> None:
        """Frees the devices for training."""
        self.checkpoint_manager.sleep_replicas()
        if self.curr_step_profile:
            self._stop_rollout_profiling()

    def on_step_end(self) -> None:
        with marked_timer("update_weights", self.timing_raw), self._usage.working("publish", step=self.global_steps):
            self.checkpoint_manager.update_weights(self.global_steps)
        self._step_ended()
        if not self._validates_now:  # else validation goes first
            self._start_generating(self.global_steps + 1)

    @property
    def _validates_now(self) -> bool:
        """Whether verl validates after this step."""
        every = int(self.config.trainer.test_freq)
        return every > 0 and (self.global_steps >= self.total_training_steps or self.global_steps % every == 0)

    def _validate(self) -> dict[str, float]:
        with self._usage.working("validate", step=self.global_steps):
            found: dict[str, float] = super()._validate()
        return found

    def _save_checkpoint(self) -> None:
        with self._usage.waiting_for("checkpoint"):
            super()._save_checkpoint()

    def _consume_sync_metrics(self) -> dict[str, float]:
        return {**super()._consume_sync_metrics(), **self._step_metrics}

    # -- admission ------------------------------------------------------------------------------------------------

    def _start_generating(self, step: int) -> None:
        """Starts the next steps as soon as the weights are there, so that verl's bookkeeping runs meanwhile."""
        if self._admit(until=step + self._settings.max_staleness + 1):
            self._book_generation(step)

    def _book_generation(self, step: int) -> None:
        if not self._usage.is_working:
            self._generating.enter_context(self._usage.working("generate", step=step))

    def _admit(self, *, until: int) -> bool:
        """Asks for the rollouts of all steps before `until` that are not open yet, at most to the end of the run.

        A resumed run with a smaller staleness has more open steps than it would have opened itself. Returns whether a
        step was opened.
        """
        first = self._next_step
        last = min(self.total_training_steps, self.steps_per_epoch * self.config.trainer.total_epochs)
        while self._next_step < until and self._next_step <= last:
            self._open.open(self._next_step, self._submit(self._next_step))
            self._next_step += 1
        return self._next_step > first

    def _submit(self, step: int, num_prompts: int | None = None) -> list[str]:
        """Asks for the rollouts of new prompts, a whole step by default. Returns the prompts."""
        batch = self._next_train_batch(num_prompts)
        tu.assign_non_tensor_data(batch, "global_steps", step)
        tu.assign_non_tensor_stack(batch, POSITION_FIELD, list(range(len(batch))))
        uids: list[str] = list(batch["uid"])
        self._submit_batch_to_rollout(batch)
        return uids

    def _reopen(self, first: int) -> None:
        """Opens the steps that a checkpoint restored. A group that was judged then stays judged."""
        self._next_step = first
        uids = self.replay_buffer.prompts_by_age()
        for prompts in restored_steps(uids, first=first, per_step=self.config.data.train_batch_size):
            self._open.open(prompts.step, prompts.uids)
            self._next_step = prompts.step + 1
            for uid in prompts.uids:
                if self.replay_buffer.is_over(uid):
                    report = GroupReport(uid=uid, step=prompts.step, size=0, verdicts=(), judged_s=time.time())
                    self._board.ask("judged", report)

    # -- a step ---------------------------------------------------------------------------------------------------

    def prepare_step(self) -> dict[str, Any]:
        """Starts the generation that validation held back."""
        self._record = VerlStepRecord.of(self.global_steps, time.monotonic())
        self._start_generating(self.global_steps)
        return {}

    def _step_once(self, metrics: dict[str, Any], timing_raw: dict[str, float], sample_batch_size: int) -> KVBatchMeta:
        step = self.global_steps
        aggregator = MetricsAggregator()
        with marked_timer("gen", timing_raw):
            uids = self._generate(step)
        batch = self.replay_buffer.take(uids)
        with self._on_device():
            if batch.keys:  # else no rollout could be generated; the groups' reports say why
                batch = self._with_log_probs(batch, aggregator, timing_raw)
            trained = self._train(batch, uids, aggregator, timing_raw)
        self._board.ask("take", uids)
        metrics.update(aggregator.get_aggregated_metrics())
        if not trained:
            raise FlowError(self._record.why_nothing_trains(self._settings.min_group))
        rows = [row for part in trained for row in rows_of(part)]
        delete_rows(sorted(set(batch.keys) - {key for key, _ in rows}))
        return batch_of(rows)

    def _generate(self, step: int) -> Sequence[str]:
        """Waits until all open steps are generated, then frees the devices for training. Returns the step's prompts."""
        self._book_generation(step)  # a resumed run may only have restored prompts to generate
        with self._generating:
            self._board.ask("wait_until_generated", self._open.uids)
        uids: Sequence[str] = self._open.take(step).uids
        if self._filter is not None:
            uids = self._filtered(step, uids, self._filter)
        self.on_sample_end()
        return uids

    def _filtered(self, step: int, uids: Sequence[str], group_filter: GroupFilter) -> list[str]:
        """Replaces groups without differences by others, until the step is full or generated often enough."""
        kept: list[str] = []
        for number in range(1, group_filter.max_batches + 1):
            with self._usage.waiting_for("reward"):
                reports = self._board.ask("wait_until_first_judged", list(uids), len(uids))
            kept += [report.uid for report in reports if self._may_train(report, group_filter)]
            missing = self.config.data.train_batch_size - len(kept)
            if not missing or number == group_filter.max_batches:
                break
            uids = self._submit(step, missing)
            with self._usage.working("generate", step=step):
                self._board.ask("wait_until_generated", uids)
        return kept

    def _may_train(self, report: GroupReport, group_filter: GroupFilter) -> bool:
        """Drops a group that the filter does not want, with its rows."""
        has_enough = num_verdicts(report) >= self._settings.min_group or is_restored(report)
        if has_enough and group_filter.differs(report):
            return True
        delete_rows(self.replay_buffer.take([report.uid]).keys)
        self._board.ask("take", [report.uid])
        dropped = EQUAL_SCORES if has_enough else TOO_FEW_VERDICTS
        self._record.group_left(report, not_generated=report.size - len(report.verdicts), dropped=dropped)
        return False

    def _with_log_probs(
        self, batch: KVBatchMeta, aggregator: MetricsAggregator, timing_raw: dict[str, float]
    ) -> KVBatchMeta:
        """Takes log-probs and values of the whole step under the weights that it starts from: they need no verdict."""
        metrics: dict[str, Any] = {}
        batch = self._balance_batch(batch, metrics=metrics)
        tags = dict(zip(batch.keys, batch.tags, strict=True))
        with self._usage.working("log_probs", step=self.global_steps):
            with marked_timer("old_log_prob", timing_raw):
                batch.extra_info["disable_auto_offload"] = self._offloads
                self._compute_old_log_prob(batch, metrics=metrics)
                batch.extra_info["disable_auto_offload"] = False
            if self.use_reference_policy:
                with marked_timer("ref", timing_raw):
                    self._compute_ref_log_prob(batch, metrics=metrics)
            if self.use_critic:
                with marked_timer("values", timing_raw):
                    self._compute_values(batch, metrics=metrics)
        aggregator.add_step_metrics(metrics, sample_count=len(tags))
        return batch_of(list(tags.items()))

    def _train(
        self, batch: KVBatchMeta, uids: Sequence[str], aggregator: MetricsAggregator, timing_raw: dict[str, float]
    ) -> list[KVBatchMeta]:
        """Trains mini-batches as their groups are judged. Those that are ready together go in one call."""
        cutter = MiniBatchCutter.of_step(
            rows_by_group(batch),
            mini_batches=math.ceil(len(uids) / self._groups_per_update),
            groups_per_update=self._groups_per_update,
            min_group=self._settings.min_group,
            record=self._record,
        )
        question = "wait_until_first_judged" if self._settings.order == "fixed" else "wait_until_judged"
        trained: list[KVBatchMeta] = []
        taken = 0
        while taken < len(uids):
            wanted = min(taken + self._groups_per_call, len(uids))
            with marked_timer("reward_wait", timing_raw), self._usage.waiting_for("reward"):
                reports = self._board.ask(question, list(uids), wanted)
            ready = num_ready(len(reports), taken=taken, per_update=self._groups_per_call, total=len(uids))
            with self._usage.working("update", step=self.global_steps):
                share = reports[taken:ready]
                parts = cutter.cut(share, keys_with_verdict(cutter.keys(share)))
                if parts:
                    trained.append(self._update(parts, aggregator, timing_raw))
            taken = ready
        return trained

    def _update(
        self, mini_batches: Sequence[MiniBatch], aggregator: MetricsAggregator, timing_raw: dict[str, float]
    ) -> KVBatchMeta:
        """Makes one optimizer step for each of these mini-batches, in their order."""
        metrics: dict[str, Any] = {}
        parts = [self._padded(batch_of(mini_batch.rows), metrics) for mini_batch in mini_batches]
        ranks = num_ranks(self.actor_rollout_wg, "actor")
        rows = interleaved([rows_of(part) for part in parts], ranks=ranks)
        whole = batch_of(rows)
        whole.extra_info["temperature"] = self.config.actor_rollout_ref.rollout.temperature
        with marked_timer("adv", timing_raw):
            whole = self._compute_advantage(whole, metrics=metrics)
            if self._is_decoupled and self.config.algorithm.rollout_correction.rollout_is is None:
                metrics |= add_behaviour_weights(whole, cap=self._settings.behaviour_weight_cap)
        whole = batch_of(rows)
        if self.use_critic:
            with marked_timer("update_critic", timing_raw):
                self._update_critic(whole, metrics=metrics)
        if self.config.trainer.critic_warmup <= self.global_steps:
            with marked_timer("update_actor", timing_raw):
                whole.extra_info["disable_auto_offload"] = self._offloads
                if self._weighs_tokens:
                    whole.extra_info[TOKEN_SHARES] = tuple(mini_batch.token_share for mini_batch in mini_batches)
                self._update_actor(whole, metrics=metrics)
        self._note_updates(parts, metrics)
        aggregator.add_step_metrics(metrics, sample_count=len(real_rows(whole)))
        return whole

    @property
    def _weighs_tokens(self) -> bool:
        """Whether mini-batches need shares: verl's mean over tokens, and rows that stay in their mini-batch."""
        actor = self.config.actor_rollout_ref.actor
        return actor.loss_agg_mode == AGGREGATION and not actor.shuffle

    def _padded(self, part: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Balances rows over the ranks, with padding rows where verl needs them."""
        first = part.keys[0]
        part = self._balance_batch(part, metrics=metrics)
        fill_padding([key for key, tag in rows_of(part) if tag.get("is_padding")], like=first)
        return part

    # -- lifetimes ------------------------------------------------------------------------------------------------

    @property
    def _offloads(self) -> bool:
        return any(self._offloaded.values())

    @property
    def _offloaded(self) -> dict[str, bool]:
        """What the actor's engine keeps in main memory between steps, as arguments of its `to`."""
        engine = engine_of(self.config.actor_rollout_ref.actor)
        return {
            "model": bool(engine["param_offload"]),
            "optimizer": bool(engine["optimizer_offload"]),
            "grad": bool(engine["param_offload"]),
        }

    @contextlib.contextmanager
    def _on_device(self) -> Iterator[None]:
        """Wraps a step's training: loads and unloads what is offloaded once, and moves the learning rate once."""
        if self._offloads:
            self.actor_rollout_wg.to("device", **self._offloaded)
        yield
        rates = self.actor_rollout_wg.advance_learning_rate()
        self._learning_rate = _first_number(rates)
        if self.use_critic:
            self.critic_wg.advance_learning_rate()
        if self._offloads:
            self.actor_rollout_wg.to("cpu", **self._offloaded)

    # -- records --------------------------------------------------------------------------------------------------

    def _note_updates(self, parts: Sequence[KVBatchMeta], metrics: dict[str, Any]) -> None:
        """Records the updates of one call, without the rows that fill a batch up."""
        metrics.pop(f"critic/{UPDATED_AT}", None)
        ended_s, updated_at_s = time.monotonic(), metrics.pop(f"actor/{UPDATED_AT}", None)
        if updated_at_s is not None:  # by the wall clock, in another process
            ended_s -= max(0.0, time.time() - float(updated_at_s))
        tags = [[tag for _, tag in real_rows(part)] for part in parts]
        self._record.updated(tags, metrics, first_ended_s=ended_s)

    def _step_ended(self) -> None:
        usage = self._usage.take(outstanding_s=self._board.ask("take_outstanding_s"))
        self._step_metrics = {
            **self._own_numbers.metrics(self._record.rewards),
            **self._record.metrics(usage),
            "actor/lr": self._learning_rate,
        }
        if self._files is not None:
            report = self._record.report(usage, ended_s=time.monotonic())
            self._files.step_ended(report, self._record.groups)


def _filter_of(filter_groups: Mapping[str, Any]) -> GroupFilter | None:
    if not filter_groups.get("enable"):
        return None
    return GroupFilter(filter_groups["metric"], filter_groups.get("max_num_gen_batches") or MAX_BATCHES)


def _first_number(values: Any) -> float:
    """Returns the first rank's answer; all ranks have the same."""
    while isinstance(values, list | tuple):
        values = values[0]
    return float(values)
