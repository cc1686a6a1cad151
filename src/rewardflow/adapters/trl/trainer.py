"""TRL's `GRPOTrainer` that does not wait: the verdicts of one generation are out while the previous one is trained.

Always true: generation batch k has the prompts that it has in TRL, and is made by the weights that k - 1 batches have
trained (the first by none); its old log-probs are those of these weights, so that TRL's ratio corrects for the batch in
between; a completion without a verdict neither trains nor counts in its group's baseline; a saved run goes on with the
generation that was in flight; when training ends, however it ends, no call of it goes on.

TRL generates, computes log-probs, asks for rewards and computes advantages in one method. That method runs here twice
for each batch: the first time it is left where it asks for rewards, after the calls have begun; the second time it
finds what it computed before, gets the verdicts, and goes on.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import trl
from accelerate.utils import gather_object

from rewardflow.adapters.trl.contact_with_trl import check_trl
from rewardflow.adapters.trl.deferred_reward import DeferredReward, deferred
from rewardflow.adapters.trl.failed_rows import leave_out, rows_to_leave_out, scaled_kl, without_failed
from rewardflow.adapters.trl.generation_in_flight import Generation, RewardsAreOut, is_plain, same_prompts
from rewardflow.adapters.trl.look_ahead import LookAhead
from rewardflow.errors import FlowError, InvalidInput
from rewardflow.reward.batch_function import PendingBatch
from rewardflow.types import Reward

logger = logging.getLogger(__name__)

_NOT_COLUMNS = ("prompt", "completion", "completion_ids")


class GRPOTrainer(trl.GRPOTrainer):
    """Takes what TRL's trainer takes. At least one of `reward_funcs` is a `RewardAgent` or its `as_batch_function()`.

    The calls of these overlap with generation and training; TRL calls other reward functions as ever.
    """

    num_iterations: int

    def __init__(
        self, model: Any, reward_funcs: Any = None, *others: Any, allow_untested_trl: bool = False, **named: Any
    ) -> None:
        check_trl(allow_untested=allow_untested_trl)
        rewards = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
        rewards = [deferred(reward) for reward in rewards if reward is not None]
        if not any(isinstance(reward, DeferredReward) for reward in rewards):
            raise InvalidInput(
                "one of reward_funcs must be a RewardAgent or its as_batch_function(), whose calls can overlap with "
                f"training, got {reward_funcs!r:.200}; without one, use TRL's own GRPOTrainer"
            )
        bound = inspect.signature(trl.GRPOTrainer.__init__).bind(self, model, rewards, *others, **named)
        if bound.arguments.get("environment_factory") is not None:
            raise InvalidInput(
                "environment_factory must be left out: an environment gives its reward at once, and would be reset "
                "while its batch waits; use TRL's own GRPOTrainer"
            )
        super().__init__(model, rewards, *others, **named)
        self._look_ahead = LookAhead(self._begin_next_epoch)
        self._window_began = 0  # TRL's count of micro-batches when the last window was read
        self._flight: Generation | None = None
        self._running: Generation | None = None  # the one that TRL's method is working on
        self._num_trained = 0
        self._is_resumed = False

    def train(self, *args: Any, **named: Any) -> Any:
        try:
            return super().train(*args, **named)
        finally:
            self._drop_flight()

    # -- batches -----------------------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> Any:
        """Training begins here, also when it begins again with a smaller batch because memory ran out."""
        self._drop_flight()
        self._look_ahead = LookAhead(self._begin_next_epoch)
        return super().get_train_dataloader()

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> Any:
        """Reads on to the batch of the next generation, if the run will train on it."""
        num_left = (self.state.max_steps - self.state.global_step - 1) * self.args.gradient_accumulation_steps
        window = self._look_ahead.take(epoch_iterator, num_batches, ahead=max(0, min(self._generate_every, num_left)))
        self._window_began = self._step
        return super().get_batch_samples(iter(window), num_batches, device)

    def _begin_next_epoch(self) -> Iterator[Any] | None:
        """Begins the next epoch early; data without a length may end anywhere, and waits for its turn."""
        loader = self.callback_handler.train_dataloader
        try:
            len(loader)
        except TypeError:
            return None
        epoch: Iterator[Any] = iter(loader)
        return epoch

    @property
    def _generate_every(self) -> int:
        return int(self.args.steps_per_generation * self.num_iterations)

    def _upcoming(self) -> tuple[Any, int] | None:
        """Returns the batch that TRL would generate for next, and the optimizer step that will train on it."""
        place = self._step - self._window_began + self._generate_every
        batch = self._look_ahead.at(place)
        if batch is None:
            return None
        beyond = place - self.current_gradient_accumulation_steps
        windows = 0 if beyond < 0 else 1 + beyond // self.args.gradient_accumulation_steps
        return batch, self.state.global_step + windows

    # -- generations -------------------------------------------------------------------------------------------------

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        """Begins the next generation, then waits for this one's verdicts; evaluation waits at once."""
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        generation = self._take_flight(inputs)
        try:
            if not generation.pending:
                self._begin(generation, inputs)
            upcoming = self._upcoming()
            if upcoming is not None:
                batch, step = upcoming
                self._flight = self._new_generation(batch, step)
                self._begin(self._flight, batch)
            return self._finish(generation, inputs)
        except BaseException:
            generation.cancel()
            raise

    def _new_generation(self, inputs: Any, step: int) -> Generation:
        return Generation([row.get("prompt") for row in inputs], step, self._num_trained)

    def _take_flight(self, inputs: Any) -> Generation:
        """Returns the generation of this batch: the one in flight, unless the data went on elsewhere."""
        generation, self._flight = self._flight, None
        is_same = generation is not None and same_prompts(generation.prompts, [row.get("prompt") for row in inputs])
        if self._is_resumed:
            self._is_resumed = False
            is_same = all(gather_object([is_same]))  # all processes must go on in the same way
            if generation is not None and not is_same:
                logger.warning(
                    "the data goes on with other prompts than those of the saved generation, which is not trained on"
                )
        if generation is not None and is_same:
            return generation
        if generation is not None:
            generation.cancel()
        return self._new_generation(inputs, self.state.global_step)

    def _begin(self, generation: Generation, inputs: Any) -> None:
        """Generates, computes log-probs, and begins the reward calls."""
        with self._working_on(generation), contextlib.suppress(RewardsAreOut):
            super()._generate_and_score_completions(inputs)
            raise FlowError("TRL's method must ask for rewards, but it ended without")

    def _finish(self, generation: Generation, inputs: Any) -> Any:
        """Waits for the verdicts and returns what TRL trains on."""
        with self._working_on(generation):
            batch = super()._generate_and_score_completions(inputs)
        if "old_per_token_logps" not in batch:
            raise FlowError("TRL must keep the log-probs of the generating policy, but its batch has none")
        failed = generation.failed_rows
        if failed is not None and bool(failed.any()):
            own = self.accelerator.process_index * len(inputs)
            batch = leave_out(
                batch,
                failed[own : own + len(inputs)],
                share=float((~failed).float().mean()),
                loss_type=self.loss_type,
                total=lambda value: self.accelerator.gather(value).sum(),
            )
        self._num_trained += 1
        return batch

    @contextlib.contextmanager
    def _working_on(self, generation: Generation) -> Iterator[None]:
        """Lets TRL's method find and keep what it computes for this generation, with old log-probs.

        TRL leaves these out unless it updates the weights between generating and training. It concludes that from
        `num_iterations`, which it reads for nothing else in this method.
        """
        generation.rewind()
        num_iterations = self.num_iterations
        self._running, self.num_iterations = generation, self.args.gradient_accumulation_steps + 1
        try:
            yield
        finally:
            self._running, self.num_iterations = None, num_iterations

    def _generate(self, prompts: Any) -> Any:
        if self._running is None:
            return super()._generate(prompts)
        return self._running.completions_or(lambda: super(GRPOTrainer, self)._generate(prompts))

    def _get_per_token_logps_and_entropies(self, *args: Any, **named: Any) -> Any:
        if self._running is None:
            return super()._get_per_token_logps_and_entropies(*args, **named)
        return self._running.log_probs_or(
            lambda: super(GRPOTrainer, self)._get_per_token_logps_and_entropies(*args, **named)
        )

    def _drop_flight(self) -> None:
        if self._flight is not None:
            self._flight.cancel()
            self._flight = None

    # -- rewards -----------------------------------------------------------------------------------------------------

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        generation = self._running
        pending = generation.pending if generation is not None else []
        if not pending:
            columns = {key: [row[key] for row in inputs] for key in inputs[0] if key not in _NOT_COLUMNS}
            columns["completion_ids"] = completion_ids_list
            pending = self._submit(prompts, completions, columns)
            if generation is not None:
                generation.pending = pending
                raise RewardsAreOut
        began_s = time.perf_counter()
        verdicts = [batch.wait() for batch in pending]
        exposed_s = time.perf_counter() - began_s
        for reward, answers in zip(self._own_rewards(), verdicts, strict=True):
            reward.answer(answers)
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        rewards = without_failed(rewards, self._own_columns())
        self._report(generation, verdicts, exposed_s)
        if generation is not None:
            generation.failed_rows = rows_to_leave_out(rewards, self.num_generations)
        return rewards

    def _submit(self, prompts: Any, completions: Any, columns: dict[str, Any]) -> list[PendingBatch]:
        step = self.state.global_step if self._running is None else self._running.step
        return [
            reward.function.submit(
                prompts,
                completions,
                columns,
                step=step,
                group_size=self.num_generations if self._running is not None else self.num_generations_eval,
                on_all_ranks=True,
            )
            for reward in self._own_rewards()
        ]

    def _own_columns(self) -> list[int]:
        return [i for i, reward in enumerate(self.reward_funcs) if isinstance(reward, DeferredReward)]

    def _own_rewards(self) -> list[DeferredReward]:
        return [self.reward_funcs[i] for i in self._own_columns()]

    def _report(self, generation: Generation | None, verdicts: Sequence[Sequence[Reward]], exposed_s: float) -> None:
        """Gives TRL what it logs with its own metrics, as means over processes and generations."""
        rows = list(zip(*verdicts, strict=True))
        cost_usd = sum(one.cost_usd for row in rows for one in row) * self.accelerator.num_processes
        self._log_metric("rewardflow/exposed_s", exposed_s)
        num_failed = sum(any(not one.is_scored for one in row) for row in rows)
        self._log_metric("rewardflow/failed_share", num_failed / len(rows))
        self._log_metric("rewardflow/cost_usd", cost_usd)
        if generation is not None:
            self._log_metric("rewardflow/staleness", self._num_trained - generation.num_trained_before)
        if self.log_completions:
            for reward, answers in zip(self._own_rewards(), verdicts, strict=True):
                said = [one.explanation if one.is_scored else f"failed: {one.error}" for one in answers]
                self._log_completion_extra(f"{reward.__name__}/explanation", said)

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        with scaled_kl(self, inputs):
            return super()._compute_loss(model, inputs)

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def _save_rng_state(self, output_dir: Any) -> None:
        """Saves, beside the random state of this process, the batch in training and the generation in flight."""
        super()._save_rng_state(output_dir)
        is_between = self._step % self._generate_every == 0
        flight = None if self._flight is None else self._flight.saved()
        if flight is None and self._flight is not None:
            logger.warning("a generation with images or other objects is not saved; a resumed run generates it again")
        state = {
            "num_processes": self.accelerator.num_processes,
            "micro_batches": self._step,
            "batches": None if is_between or not is_plain(self._buffered_inputs) else self._buffered_inputs,
            "num_trained": self._num_trained,
            "flight": flight,
        }
        path = Path(output_dir) / self._state_name
        torch.save(state, path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        path = Path(checkpoint) / self._state_name
        state = torch.load(path, map_location=self.accelerator.device, weights_only=True) if path.exists() else None
        num_parts = None if state is None or state["batches"] is None else len(state["batches"])
        fits = (
            state is not None
            and state["num_processes"] == self.accelerator.num_processes
            and num_parts in (None, self.args.steps_per_generation)
            and (num_parts is not None or state["micro_batches"] % self._generate_every == 0)
        )
        if not all(gather_object([fits])) or state is None:
            logger.warning("%s holds no generation that fits this run, which generates anew", checkpoint)
            return
        self._step, self._buffered_inputs = state["micro_batches"], state["batches"]
        self._num_trained = state["num_trained"]
        self._flight = None if state["flight"] is None else Generation.loaded(state["flight"])
        self._is_resumed = True

    @property
    def _state_name(self) -> str:
        return f"rewardflow_generation_{self.accelerator.process_index}.pt"
