"""Makes the estimator that `algorithm.advantage` names, with its settings and the KL penalty of the reward.

Always true: the table has every choice of the setting; each estimator needs what `settings.algorithm_needs` says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rewardflow.algo.component_advantages import PerComponent
from rewardflow.algo.estimator import Estimator
from rewardflow.algo.estimators.gae import AgainstValues
from rewardflow.algo.estimators.gpg import NonzeroScaled
from rewardflow.algo.estimators.grpo import GroupRelative
from rewardflow.algo.estimators.grpo_passk import BestOfGroup
from rewardflow.algo.estimators.opo import LengthWeighted
from rewardflow.algo.estimators.reinforce_plus_plus import WhitenedOutcomes, WhitenedReturns
from rewardflow.algo.estimators.remax import AgainstGreedy
from rewardflow.algo.estimators.rloo import LeaveOneOut
from rewardflow.algo.lookup import look_up
from rewardflow.algo.reward_kl import AdaptiveKl, FixedKl, KlInReward
from rewardflow.flow.protocols import Advantages
from rewardflow.settings.run_settings import AlgorithmSettings

__all__ = ["ESTIMATORS", "GroupRelative", "make_advantages"]


def make_advantages(settings: AlgorithmSettings) -> Advantages:
    estimator = look_up("advantage", settings.advantage, ESTIMATORS)(settings)
    if settings.component_weights:
        return PerComponent(estimator=estimator, weights=settings.component_weights)
    if settings.reward_kl_coef == 0:
        return estimator
    return KlInReward(estimator, controller=_controller(settings), kl_estimator=settings.reward_kl_estimator)


def _controller(settings: AlgorithmSettings) -> FixedKl | AdaptiveKl:
    if settings.reward_kl_target is None:
        return FixedKl(settings.reward_kl_coef)
    return AdaptiveKl(settings.reward_kl_coef, target=settings.reward_kl_target, horizon=settings.reward_kl_horizon)


ESTIMATORS: Mapping[str, Callable[[AlgorithmSettings], Estimator]] = {
    "grpo": lambda settings: GroupRelative(scale=settings.scale, discount=settings.discount),
    "grpo_passk": lambda settings: BestOfGroup(scale=settings.scale),
    "rloo": lambda settings: LeaveOneOut(),
    "opo": lambda settings: LengthWeighted(),
    "gpg": lambda settings: NonzeroScaled(),
    "reinforce_plus_plus": lambda settings: WhitenedReturns(discount=settings.discount),
    "reinforce_plus_plus_baseline": lambda settings: WhitenedOutcomes(),
    "remax": lambda settings: AgainstGreedy(),
    "gae": lambda settings: AgainstValues(discount=settings.discount, lam=settings.lam, whiten=settings.whiten),
}
