"""The settings of advantages and loss.

Always true: a setting that has no effect with the others is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rewardflow.errors import InvalidInput
from rewardflow.flow.schedule import OldLogProbs
from rewardflow.settings.algorithm_needs import ADVANTAGES, AdvantageKind
from rewardflow.settings.rules import at_least, check_choices, within

Aggregation = Literal["token_mean", "seq_mean_token_sum", "seq_mean_token_mean", "fixed_length"]
AdvantageName = Literal[
    "grpo",
    "grpo_passk",
    "rloo",
    "opo",
    "gpg",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "remax",
    "gae",
]
KlEstimator = Literal["k1", "k2", "k3", "abs"]
LossKlEstimator = Literal["k1", "k2", "k3", "abs", "k1+", "k3+"]
WeighBy = Literal["token", "sequence"]
RejectBy = Literal["token", "sequence", "sequence_mean"]
AboveCap = Literal["leave_out", "truncate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmSettings:
    """Advantages and loss, in the order of computation; algorithms.md has the formulas.

    The behaviour policy generated the rollouts; `behaviour` chooses its log-probs: from the engine, or from the trainer
    under the same weights. The old policy is the trainer's policy before a step's first update.
    """

    advantage: AdvantageName = "grpo"  # how scores become advantages
    # the weight of each component's own advantage, such as {correctness: 1.0, style: 0.2}; empty: one advantage, of
    # the score
    component_weights: Mapping[str, float] = field(default_factory=dict)
    # which spread divides the scores of `grpo` and `grpo_passk`: the group's, the whole batch's, or none
    scale: Literal["group", "batch", "none"] = "group"
    discount: float = 1.0  # below 1, a reward counts less for a token with each sampled token between them
    lam: float = 1.0  # for `gae`: 1 trusts the observed rewards, 0 the critic's next value
    whiten: bool = True  # for `gae`: centre and scale advantages over the tokens of the whole batch
    reward_kl_coef: float = 0.0  # how much a token's KL from the reference policy lowers its reward
    reward_kl_estimator: KlEstimator = "k1"  # the estimator of that KL
    reward_kl_target: float | None = None  # adapt `reward_kl_coef` to keep that KL near this; null: do not adapt
    reward_kl_horizon: int = 10_000  # rollouts over which `reward_kl_coef` adapts; more is slower

    loss: Literal["ppo", "decoupled", "cispo", "gspo", "policy_gradient"] = "ppo"  # the policy loss
    # which policy's probability the loss divides the new one by: the policy before the step's first update, or the one
    # that generated, which also corrects for stale rollouts and saves the pass for old log-probs
    ratio_to: Literal["old", "behaviour"] = "old"
    clip_low: float = 0.2  # lower bound of that ratio: 1 minus this
    clip_high: float = 0.2  # upper bound of that ratio: 1 plus this
    dual_clip: float | None = 3.0  # upper bound of the ratio for negative advantages; null: no bound

    behaviour: Literal["engine", "trainer"] = "engine"  # where the log-probs of the behaviour policy come from
    # weigh the loss of a token, or of a whole response, by its probability under the old policy divided by that under
    # the behaviour policy; null: `token` for `loss: decoupled`, otherwise no weights
    behaviour_weights: WeighBy | None = None
    behaviour_weight_cap: float | None = 5.0  # the largest such weight; null: no bound
    above_cap: AboveCap = "leave_out"  # what to do with tokens or responses of larger weight
    # leave out tokens, or whole responses (by the product or the geometric mean over their tokens), on which old and
    # behaviour policy differ too much; null: leave out none
    reject: RejectBy | None = None
    reject_outside: tuple[float, float] = (0.5, 2.0)  # ratios of old to behaviour probability that `reject` keeps

    mask_truncated: bool = False  # do not train on responses that only `max_response_tokens` ended
    kl_coef: float = 0.0  # weight of the KL from the reference policy; above 0, the run keeps a reference model
    kl_estimator: LossKlEstimator = "k3"  # the estimator of that KL; `k1+` and `k3+` have the gradient of `k2`
    entropy_coef: float = 0.0  # weight of the entropy bonus in the loss
    aggregation: Aggregation = "token_mean"  # how the loss terms of tokens become one number

    def __post_init__(self) -> None:
        check_choices(self)
        within("discount", self.discount, 0.0, 1.0, low_open=True)
        within("lam", self.lam, 0.0, 1.0)
        within("clip_low", self.clip_low, 0.0, 1.0, low_open=True)
        within("clip_high", self.clip_high, 0.0, math.inf, low_open=True)
        if self.dual_clip is not None:
            within("dual_clip", self.dual_clip, 1.0, math.inf, low_open=True)
        if self.behaviour_weight_cap is not None:
            within("behaviour_weight_cap", self.behaviour_weight_cap, 0.0, math.inf, low_open=True)
        low, high = self.reject_outside
        within("reject_outside[0]", low, 0.0, 1.0, low_open=True)
        within("reject_outside[1]", high, 1.0, math.inf)
        for name in ("reward_kl_coef", "kl_coef", "entropy_coef"):
            within(name, getattr(self, name), 0.0, math.inf)
        if self.reward_kl_target is not None:
            within("reward_kl_target", self.reward_kl_target, 0.0, math.inf, low_open=True)
        at_least("reward_kl_horizon", self.reward_kl_horizon, 1)
        self._check_unused()

    def _check_unused(self) -> None:
        """Refuses settings that have no effect, because their user misunderstands them."""
        if self.component_weights:
            self._check_components()
        if self.scale != "group" and not self.kind.takes_scale:
            raise InvalidInput(
                f"scale is for {named('takes_scale')}, got advantage={self.advantage}, scale={self.scale}"
            )
        if self.discount != 1.0 and not self.kind.takes_discount:
            raise InvalidInput(
                f"a discount below 1 is for {named('takes_discount')}, "
                f"got advantage={self.advantage}, discount={self.discount}"
            )
        if self.lam != 1.0 and not self.kind.critic:
            raise InvalidInput(f"lam is for {named('critic')}, got advantage={self.advantage}, lam={self.lam}")
        if not self.whiten and not self.kind.takes_whiten:
            raise InvalidInput(f"whiten is for {named('takes_whiten')}, got advantage={self.advantage}, whiten=false")
        if self.reward_kl_target is not None and self.reward_kl_coef == 0:
            raise InvalidInput(
                "reward_kl_target moves reward_kl_coef, which must start above 0, "
                f"got reward_kl_target={self.reward_kl_target}, reward_kl_coef=0"
            )
        if self.behaviour == "trainer" and not self.needs_behaviour:
            raise InvalidInput(
                "behaviour=trainer is for what compares with the policy that generated (loss=decoupled, "
                "ratio_to=behaviour, behaviour_weights or reject), "
                f"got loss={self.loss}, ratio_to={self.ratio_to} without behaviour_weights and reject"
            )
        if self.ratio_to == "behaviour":
            self._check_ratio_to_behaviour()

    def _check_components(self) -> None:
        for name, weight in self.component_weights.items():
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
                raise InvalidInput(f"component_weights.{name} must be a finite number, got {weight!r}")
        if not any(self.component_weights.values()):
            raise InvalidInput("component_weights: at least one weight must differ from 0, got only zeros")
        if not self.kind.takes_components:
            raise InvalidInput(f"component_weights are for {named('takes_components')}, got advantage={self.advantage}")
        if self.reward_kl_coef > 0:
            raise InvalidInput(
                "component_weights take no penalty of the reward, which would count once for each component: use "
                f"kl_coef instead of reward_kl_coef, got reward_kl_coef={self.reward_kl_coef}"
            )

    def _check_ratio_to_behaviour(self) -> None:
        if self.loss == "policy_gradient":
            raise InvalidInput("ratio_to is for losses with a ratio, got loss=policy_gradient, ratio_to=behaviour")
        if self.weigh_by is not None or self.reject is not None:
            raise InvalidInput(
                "ratio_to=behaviour corrects for the policy that generated by itself; loss=decoupled, "
                "behaviour_weights and reject compare the old policy with it and need ratio_to=old, "
                f"got loss={self.loss}, behaviour_weights={self.behaviour_weights}, reject={self.reject}"
            )

    @property
    def kind(self) -> AdvantageKind:
        return ADVANTAGES[self.advantage]

    @property
    def weigh_by(self) -> WeighBy | None:
        """`behaviour_weights`, with null replaced by its meaning."""
        return "token" if self.behaviour_weights is None and self.loss == "decoupled" else self.behaviour_weights

    @property
    def needs_reference(self) -> bool:
        return self.kl_coef > 0 or self.reward_kl_coef > 0

    @property
    def needs_behaviour(self) -> bool:
        return self.weigh_by is not None or self.reject is not None or self.ratio_to == "behaviour"

    @property
    def old_log_probs(self) -> OldLogProbs:
        """When old log-probs are computed: if a step has one update, the loss needs none, but KL in the reward does."""
        if self.reward_kl_coef > 0:
            return "always"
        return "with_several_updates" if self.ratio_to == "old" else "never"

    @property
    def why_batch(self) -> str:
        """Says which setting needs the whole batch's scores before the first update; empty if none does."""
        if self.kind.why_batch and self.whiten:
            return f"algorithm.advantage={self.advantage} {self.kind.why_batch}, so it"
        if self.scale == "batch":
            return "algorithm.scale=batch"
        return "algorithm.reward_kl_target" if self.reward_kl_target is not None else ""


def named(trait: str) -> str:
    """Lists the advantages that have this trait."""
    return ", ".join(name for name, kind in ADVANTAGES.items() if getattr(kind, trait))
