"""The trainer on torch: one process with a plain module, or several ranks with FSDP2.

Always true: the same micro-batches in the same order give the same weights, bit for bit; how an update is cut into
micro-batches changes its gradient by rounding alone; failed samples contribute nothing; all ranks make the same number
of passes, however many samples they have. Weights stay on the device, where generators read them; with `offload`, what
only training needs (the optimizer's state, the reference, the critic) leaves the device between steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack

import torch
from torch import Tensor, nn

from rewardflow.algo.token_softmax import Entropy
from rewardflow.checkpoint.model_state import State, read_state, state_of
from rewardflow.errors import InvalidInput
from rewardflow.flow.records import MicroBatch, Sample
from rewardflow.policy.accelerator import release_cached_memory
from rewardflow.policy.adapters import plain_weights, without_adapters
from rewardflow.train.accumulated import UpdateSums
from rewardflow.train.device_trainer import CPU, DeviceTrainer, RankRole, TrainerArguments
from rewardflow.train.fsdp2.critic import Critic, CriticPart
from rewardflow.train.fsdp2.optimizer import build_optimizer, fill_with_zeros, move_state, set_learning_rate, update
from rewardflow.train.fsdp2.sharding import Ranks, is_sharded, shard, whole
from rewardflow.train.learning_rate import share
from rewardflow.train.loss_terms import TrainingRow
from rewardflow.train.packing import IDLE_ROW, PackedRows, TokenRow, pack
from rewardflow.train.padding_free import check_keeps_rows_apart, check_rows_stay_apart
from rewardflow.train.passes import by_row, even_passes
from rewardflow.train.token_log_probs import TokenScores, hidden_states, token_log_probs
from rewardflow.types import Rollout

if TYPE_CHECKING:
    import torch.distributed as dist

_CRITIC = "critic."  # before the names of its tensors in a checkpoint


class TorchTrainer(DeviceTrainer):
    """The trainer of one rank, or of the only process. Every rank is a replica and has a part of every weight.

    The caller passes the model on its device, whole and equal on every rank of `group`, with gradient checkpointing set
    or not; the reference and the critic likewise. A reference that is the model itself is the model without its
    adapters.

    A critic with its own model makes its own passes, after those of the policy; a head on the policy's trunk learns in
    the policy's passes. In steps in which the critic learns alone, nothing of the policy changes.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        reference: nn.Module | None = None,
        critic: CriticPart | None = None,
        group: dist.ProcessGroup | None = None,
        **told: Unpack[TrainerArguments],
    ) -> None:
        super().__init__(next(model.parameters()).device, **told)
        if self._settings.padding_free:
            check_keeps_rows_apart(model)
        self.model = model
        self.reference = reference
        self._ranks = Ranks(self._device, group)
        replica = 0 if group is None else group.rank()
        self.role = RankRole(replica=replica, num_replicas=self._ranks.size, sends_weights=replica == 0)
        for whole_model in (model, reference):
            if whole_model is not None:
                shard(whole_model, self._ranks, compute=self._autocast)
        self._leaves_device = self._settings.offload and self._device.type != "meta"  # an outline has nothing to move
        if self.own_reference is not None and self._leaves_device:
            self.own_reference.to(CPU)
        self.optimizer = build_optimizer(model, self._settings)
        self.critic = None if critic is None else self._make_critic(critic)

    @property
    def own_reference(self) -> nn.Module | None:
        """The reference if it has weights of its own."""
        return None if self.reference is self.model else self.reference

    def _make_critic(self, part: CriticPart) -> Critic:
        return Critic(
            part,
            ranks=self._ranks,
            compute=self._autocast,
            offload=self._settings.offload,
            aggregation=self._terms.algorithm.aggregation,
            total_steps=self._total_steps,
        )

    @property
    def lr(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        return plain_weights(self.model, whole, dtype)

    def weights_to_send(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights on every rank; the first rank sends them."""
        return self.weights(dtype)

    def check_passes(self) -> None:
        """Raises if the loaded model cannot make passes as the settings say. On the thread; all ranks together."""
        if self._settings.padding_free:
            model = self.model.eval()
            is_exact = self._device == CPU and self._autocast is None and model.dtype == torch.float32
            check_rows_stay_apart(
                lambda packed: self._score(model, packed).log_probs_N, self._device, is_rounded=not is_exact
            )

    # -- on the thread: a step ---------------------------------------------------------------------------------------

    def _load(self, number: int) -> None:
        if self._leaves_device:
            move_state(self.optimizer, None)
        if self.critic is not None:
            self.critic.begin_step(number)

    def _clear_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        if self.critic is not None:
            self.critic.end_step()

    def rest(self) -> None:
        """With `offload`, moves the optimizer's state and the critic off the device."""
        if self.critic is not None:
            self.critic.rest()
        if self._leaves_device:
            move_state(self.optimizer, CPU)
            release_cached_memory()

    def _set_learning_rate(self, number: int) -> None:
        """Counts steps from the first in which the policy learns, so that its warm-up starts there."""
        num_alone = 0 if self.critic is None else self.critic.settings.alone_steps
        step, total_steps = max(0, number - num_alone), self._total_steps - num_alone
        set_learning_rate(self.optimizer, self._settings.lr * share(step, total_steps, self._settings))

    # -- on the thread: passes ---------------------------------------------------------------------------------------

    @torch.no_grad()
    def _log_probs(self, rollouts: Sequence[Rollout], of: Literal["policy", "reference"]) -> list[Tensor]:
        model = self.model if of == "policy" else self.reference
        if model is None:
            raise InvalidInput("log-probs of the reference need a reference model, got reference=None")
        is_base = of == "reference" and self.own_reference is None
        with self._on_device(model.eval()), without_adapters(model) if is_base else nullcontext():
            return self._look(rollouts, lambda packed: self._score(model, packed).log_probs_N)

    @torch.no_grad()
    def _values(self, rollouts: Sequence[Rollout]) -> list[Tensor]:
        critic = self.critic
        if critic is None:
            raise InvalidInput("values need a critic, got critic=None")
        if not critic.shares_trunk:
            critic.model.eval()
            return self._look(rollouts, critic.values)
        model = self.model.eval()
        return self._look(rollouts, lambda packed: critic.shared_values(self._hidden(model, packed)))

    def _look(self, rollouts: Sequence[Rollout], score: Callable[[PackedRows], Tensor]) -> list[Tensor]:
        """Returns what `score` computes for the sampled tokens, by rollout; rollouts share passes."""
        rows = [TokenRow.of(rollout) for rollout in rollouts]
        passes = self._passes(rows)
        found = []
        for indices in passes:
            chosen = [rows[index] for index in indices] or [IDLE_ROW]
            found.append(score(self._pack(chosen)))
        return by_row(found, passes, rows)

    def _forward_backward(self, batch: MicroBatch) -> None:
        scored = self._tally.take(batch)
        sampled = [(sample, row) for sample, row in scored if row.sampled]
        rows = self._policy_rows(sampled)
        self._tally.count_rows(scored, rows)
        self._run_passes(rows, self._backward, self._idle_row)
        if self.critic is not None and not self.critic.shares_trunk:
            terms = self.critic.terms
            values = [terms.training_row(sample, row) for sample, row in sampled]
            self._run_passes(values, self._backward_critic, terms.idle_row)

    def _policy_rows(self, sampled: Sequence[tuple[Sample, TokenRow]]) -> list[TrainingRow]:
        """Returns the rows that go through the policy: all of them if a critic learns from its trunk."""
        if self.critic is not None and self.critic.shares_trunk:
            terms = self.critic.terms
            return [self._terms.training_row(*one).joined(terms.training_row(*one)) for one in sampled]
        if self._is_critic_alone:
            return []
        return [self._terms.training_row(sample, row) for sample, row in sampled if self._terms.has_gradient(sample)]

    def _idle_row(self) -> TrainingRow:
        idle = self._terms.idle_row()
        return idle if self.critic is None else idle.joined(self.critic.terms.idle_row())

    @property
    def _is_critic_alone(self) -> bool:
        if self.critic is None or self._open_step is None:
            return False
        return self.critic.learns_alone_in(self._open_step)

    def _run_passes(
        self,
        rows: Sequence[TrainingRow],
        backward: Callable[[Sequence[TrainingRow]], None],
        idle_row: Callable[[], TrainingRow],
    ) -> None:
        for indices in self._passes([row.row for row in rows]):
            backward([rows[index] for index in indices] or [idle_row()])

    def _passes(self, rows: Sequence[TokenRow]) -> list[list[int]]:
        settings = self._settings
        return even_passes(rows, settings.pass_tokens, self._ranks, padding_free=settings.padding_free)

    def _pack(self, rows: Sequence[TokenRow]) -> PackedRows:
        return pack(rows, self._device, padding_free=self._settings.padding_free)

    def _backward(self, rows: Sequence[TrainingRow]) -> None:
        """Makes one forward and backward pass, which adds the mean over ranks to each rank's part of the gradient."""
        self._tally.count_passes(1)
        packed = self._pack([row.row for row in rows])
        if self._is_critic_alone:
            self._backward_head(rows, packed)
            return
        scores = self._score(self.model.train(), packed, entropy=self._terms.entropy)
        numerator = self._terms.numerator(rows, packed, scores)
        total = numerator.value
        if self.critic is not None and self.critic.shares_trunk:
            assert scores.hidden_ND is not None
            values_N = self.critic.shared_values(scores.hidden_ND)
            total = total + self.critic.numerator(rows, packed, values_N)
        total.backward()  # type: ignore[no-untyped-call]
        self._tally.add(numerator.sums)

    def _backward_head(self, rows: Sequence[TrainingRow], packed: PackedRows) -> None:
        """Makes a pass in which only the critic's head learns, on a trunk that does not change."""
        assert self.critic is not None
        with torch.no_grad():
            hidden_ND = self._hidden(self.model.train(), packed)
        values_N = self.critic.shared_values(hidden_ND)
        self.critic.numerator(rows, packed, values_N).backward()  # type: ignore[no-untyped-call]

    def _backward_critic(self, rows: Sequence[TrainingRow]) -> None:
        assert self.critic is not None
        self._tally.count_passes(1)
        self.critic.model.train()
        packed = self._pack([row.row for row in rows])
        values_N = self.critic.values(packed)
        self.critic.numerator(rows, packed, values_N).backward()  # type: ignore[no-untyped-call]

    def _score(self, model: nn.Module, packed: PackedRows, *, entropy: Entropy = "none") -> TokenScores:
        return token_log_probs(
            model,
            packed,
            temperature=self._temperature,
            entropy=entropy,
            autocast=None if is_sharded(model) else self._autocast,  # FSDP2 casts by itself
        )

    def _hidden(self, model: nn.Module, packed: PackedRows) -> Tensor:
        return hidden_states(model, packed, autocast=None if is_sharded(model) else self._autocast)

    @contextmanager
    def _on_device(self, model: nn.Module) -> Iterator[None]:
        """With `offload`, keeps the reference on the device only while it computes."""
        leaves_device = self._leaves_device and model is self.own_reference
        if leaves_device:
            model.to(self._device)
        try:
            yield
        finally:
            if leaves_device:
                model.to(CPU)

    # -- on the thread: an update ------------------------------------------------------------------------------------

    def _update(self, token_share: float) -> tuple[UpdateSums, float | None]:
        sums = self._tally.close(self._ranks, token_share)
        if self.critic is not None:
            told = self.critic.update(sums.denominator)
            sums = replace(sums, metrics={**sums.metrics, **told})
        grad_norm = self._update_policy(sums) if sums.denominator and not self._is_critic_alone else None
        return sums, grad_norm

    def _update_policy(self, sums: UpdateSums) -> float:
        if sums.num_passes == 0:
            fill_with_zeros(self.optimizer)
        # FSDP2 reduces to the mean over ranks, and the denominator is that of all of them.
        scale = self._ranks.size / sums.denominator
        return update(self.optimizer, scale=scale, max_grad_norm=self._settings.max_grad_norm)

    # -- on the thread: checkpoints ----------------------------------------------------------------------------------

    def _state(self) -> State:
        state = dict(state_of(self.model, self.optimizer))
        if self.critic is not None:
            state |= state_of(self.critic.model, self.critic.optimizer, owner=_CRITIC)
        return state

    def _read_state(self, folder: Path) -> None:
        group = self._ranks.group
        read_state(folder, self.model, self.optimizer, group=group)
        if self.critic is not None:
            read_state(folder, self.critic.model, self.critic.optimizer, owner=_CRITIC, group=group)
