"""Subtracts a KL penalty from the reward: tokens pay for being likelier under the old policy than the reference.

Always true: failed rollouts pay nothing and do not move the coefficient. Estimators that use one outcome per rollout
subtract the sum of its penalties; those that use tokens subtract each penalty at its token, as in verl.

The coefficient may adapt to bring the KL to a target (https://arxiv.org/abs/1909.08593). It changes once a batch, so
such advantages need the whole batch. It is the only state here, so a resumed run must restore `controller`.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from rewardflow.algo.estimator import Advantage, Estimator, num_sampled
from rewardflow.algo.kl import kl_to_reference
from rewardflow.errors import InvalidInput
from rewardflow.flow.records import PrecomputedOf
from rewardflow.settings.algorithm_needs import Needs
from rewardflow.settings.run_settings import KlEstimator
from rewardflow.types import Rollout, ScoredGroup

if TYPE_CHECKING:
    from torch import Tensor

MAX_ERROR = 0.2  # a batch's KL may miss the target by more, relatively, but the coefficient moves no faster


@dataclass(frozen=True, slots=True)
class FixedKl:
    coef: float

    def after(self, kl: float, num_rollouts: int) -> FixedKl:
        return self


@dataclass(frozen=True, slots=True)
class AdaptiveKl:
    """Raises the coefficient after a batch above the target, lowers it below; a larger horizon makes it slower."""

    coef: float
    target: float
    horizon: int

    def after(self, kl: float, num_rollouts: int) -> AdaptiveKl:
        error = min(max(kl / self.target - 1, -MAX_ERROR), MAX_ERROR)
        return replace(self, coef=self.coef * (1 + error * num_rollouts / self.horizon))


@dataclass(frozen=True, slots=True)
class PaidKl:
    """The penalised KL: `mean` over scored rollouts of each one's mean KL, None if there were none."""

    mean: float | None
    coef: float


class KlInReward:
    """Wraps an estimator and subtracts `coef` times the KL of each sampled token from its rewards."""

    def __init__(
        self, estimator: Estimator, *, controller: FixedKl | AdaptiveKl, kl_estimator: KlEstimator = "k1"
    ) -> None:
        self.estimator = estimator
        self.controller = controller
        self._kl_estimator = kl_estimator
        self._paid: list[float] = []  # mean KL of each rollout
        self._coef_paid = controller.coef

    @property
    def needs(self) -> Needs:
        return "batch" if isinstance(self.controller, AdaptiveKl) else self.estimator.needs

    def __call__(self, groups: Sequence[ScoredGroup], precomputed_of: PrecomputedOf) -> Sequence[Sequence[Advantage]]:
        coef = self.controller.coef
        means: list[float] = []

        def penalty_of(rollout: Rollout) -> Tensor:
            kl_T = self._kl_of(rollout, precomputed_of)
            means.append(kl_T.mean().item() if len(kl_T) else 0.0)
            return coef * kl_T

        advantages = self.estimator(groups, precomputed_of, penalty_of)
        if means:
            self._paid += means
            self._coef_paid = coef
            self.controller = self.controller.after(statistics.fmean(means), len(means))
        return advantages

    def take_paid(self) -> PaidKl:
        """Returns the KL since the last call, with the coefficient that was applied to it, not the current one."""
        paid, self._paid = self._paid, []
        return PaidKl(statistics.fmean(paid) if paid else None, self._coef_paid)

    def _kl_of(self, rollout: Rollout, precomputed_of: PrecomputedOf) -> Tensor:
        """Returns float64 estimates, one for each sampled token."""
        precomputed = precomputed_of(rollout)
        missing = [name for name in ("old", "reference") if getattr(precomputed, name) is None]
        if missing:
            raise InvalidInput(
                "KL in the reward compares old and reference log-probs, "
                f"got no {' and no '.join(missing)} for rollout {rollout.index} of group {rollout.group_id!r}"
            )
        old_T, reference_T = (
            torch.as_tensor(one).detach().cpu().double() for one in (precomputed.old, precomputed.reference)
        )
        if old_T.shape != reference_T.shape or old_T.shape != (num_sampled(rollout),):
            raise InvalidInput(
                "log-probs must have one entry for each sampled token, "
                f"got {tuple(old_T.shape)} old and {tuple(reference_T.shape)} reference ones for "
                f"{num_sampled(rollout)} tokens of rollout {rollout.index} of group {rollout.group_id!r}"
            )
        return kl_to_reference(old_T, reference_T, torch.ones_like(old_T), self._kl_estimator)
