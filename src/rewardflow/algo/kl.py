"""Estimates the KL divergence of the policy from the reference, from the sampled tokens alone.

Always true: every estimate is exactly 0 outside the mask, in value and gradient. With r = p_reference / p and tokens
sampled from p, these estimate KL(p, p_reference), except `abs`, which only measures a distance:

    k1    -log r            unbiased; may be negative, and the mean of its gradient is 0
    k2    (log r)^2 / 2     biased, with the right gradient
    k3    r - 1 - log r     unbiased, never negative, of small variance; at most 10, against outliers
    abs   |log r|           never negative
    k1+   as k1             with the gradient of k2, whose mean is the gradient of the divergence
    k3+   as k3             likewise

See http://joschu.net/blog/kl-approx.html.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rewardflow.algo.log_ratio import bounded, log_ratio
from rewardflow.algo.lookup import look_up
from rewardflow.settings.run_settings import LossKlEstimator

if TYPE_CHECKING:
    from torch import Tensor

MAX_K3 = 10.0


def kl_to_reference(
    log_probs_BT: Tensor, reference_BT: Tensor, mask_BT: Tensor, estimator: LossKlEstimator = "k3"
) -> Tensor:
    """Returns the estimate of each token, with the estimator's own gradient."""
    return look_up("estimator", estimator, ESTIMATORS)(log_ratio(log_probs_BT, reference_BT, mask_BT))


def _k1(log_ratio_BT: Tensor) -> Tensor:
    return log_ratio_BT


def _k2(log_ratio_BT: Tensor) -> Tensor:
    return 0.5 * log_ratio_BT.square()


def _k3(log_ratio_BT: Tensor) -> Tensor:
    backwards_BT = bounded(-log_ratio_BT)
    return (backwards_BT.exp() - 1 - backwards_BT).clamp(max=MAX_K3)


def _abs(log_ratio_BT: Tensor) -> Tensor:
    return log_ratio_BT.abs()


def _pulling_as_k2(estimate: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def estimated(log_ratio_BT: Tensor) -> Tensor:
        pull_BT = _k2(log_ratio_BT)
        return estimate(log_ratio_BT).detach() + pull_BT - pull_BT.detach()

    return estimated


# The argument of each is log p - log p_reference.
ESTIMATORS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "k1": _k1,
    "k2": _k2,
    "k3": _k3,
    "abs": _abs,
    "k1+": _pulling_as_k2(_k1),
    "k3+": _pulling_as_k2(_k3),
}
