"""What is optimised.

Always true: a setting that would change nothing beside the others is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from rewardflow.errors import InvalidInput
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
    """What is optimised, in the order in which it is computed; the formulas are in algorithms.md.

    The behaviour policy is the one that generated; `behaviour` says whose log-probs stand for it: the engine's, or the
    trainer's under the same weights. The old policy is that of the trainer before a step's first update.
    """

    advantage: AdvantageName = "grpo"  # what a score is worth beside others
    # whose spread divides the scores of `grpo` and `grpo_passk`: of the group, of the whole batch, or nobody's
    scale: Literal["group", "batch", "none"] = "group"
    discount: float = 1.0  # below 1, a reward fades with the sampled tokens between it and a token
    lam: float = 1.0  # of `gae`: 1 trusts the rewards that came, 0 the critic's next value
    whiten: bool = True  # of `gae`: centre and scale advantages over the tokens of the batch, for which it needs all
    reward_kl_coef: float = 0.0  # what each token pays, off the reward, for its KL from the reference policy
    reward_kl_estimator: KlEstimator = "k1"  # how that KL is estimated
    reward_kl_target: float | None = None  # `reward_kl_coef` moves to keep that KL here; null: it stays
    reward_kl_horizon: int = 10_000  # rollouts over which it moves; more: slower

    loss: Literal["ppo", "decoupled", "gspo", "policy_gradient"] = "ppo"  # how advantages pull
    clip_low: float = 0.2  # the ratio of new to old probability counts down to 1 minus this
    clip_high: float = 0.2  # and up to 1 plus this
    dual_clip: float | None = 3.0  # with a negative advantage the ratio counts up to this; null: without bound

    behaviour: Literal["engine", "trainer"] = "engine"  # whose log-probs stand for the policy that generated
    # weigh the loss by how much likelier the old policy finds a token, or the whole response, than the policy that
    # generated; null: by `token` with `decoupled`, else not
    behaviour_weights: WeighBy | None = None
    behaviour_weight_cap: float | None = 5.0  # the largest such weight; null: without bound
    above_cap: AboveCap = "leave_out"  # what becomes of tokens or responses with larger weights
    # leave out tokens, or responses by the product or the geometric mean of their tokens, where old and behaviour
    # policy differ too much; null: none
    reject: RejectBy | None = None
    reject_outside: tuple[float, float] = (0.5, 2.0)  # the ratios of old to behaviour probability that `reject` keeps

    kl_coef: float = 0.0  # weight of the distance from the reference policy; above 0 a reference model is kept
    kl_estimator: LossKlEstimator = "k3"  # how that distance is estimated; `k1+` and `k3+` pull as `k2` does
    entropy_coef: float = 0.0  # weight of the bonus for entropy
    aggregation: Aggregation = "token_mean"  # how the terms of tokens become one number

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
        """A setting that would change nothing is a misunderstanding."""
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
                f"behaviour_weights or reject), got loss={self.loss} without behaviour_weights and reject"
            )

    @property
    def kind(self) -> AdvantageKind:
        return ADVANTAGES[self.advantage]

    @property
    def weigh_by(self) -> WeighBy | None:
        """What `behaviour_weights` comes to."""
        return "token" if self.behaviour_weights is None and self.loss == "decoupled" else self.behaviour_weights

    @property
    def needs_reference(self) -> bool:
        return self.kl_coef > 0 or self.reward_kl_coef > 0

    @property
    def needs_behaviour(self) -> bool:
        return self.weigh_by is not None or self.reject is not None

    @property
    def takes_old(self) -> bool:
        """Whether old log-probs are needed where a step has one update, so that the loss does without."""
        return self.reward_kl_coef > 0

    @property
    def why_batch(self) -> str:
        """What takes the whole batch's scores before the first update, in words; empty if nothing does."""
        if self.kind.why_batch and self.whiten:
            return f"algorithm.advantage={self.advantage} {self.kind.why_batch}, so it"
        if self.scale == "batch":
            return "algorithm.scale=batch"
        return "algorithm.reward_kl_target" if self.reward_kl_target is not None else ""


def named(trait: str) -> str:
    """The advantages of which this is true, in words."""
    return ", ".join(name for name, kind in ADVANTAGES.items() if getattr(kind, trait))
