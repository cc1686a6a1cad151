"""KL estimates: per token equal to verl's in value and gradient, and silent outside the mask."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest
import torch
from algo.policies import BEHAVIOUR_BT, MASK_BT, NEW_BT

from rewardflow.algo.kl import ESTIMATORS, kl_to_reference
from rewardflow.errors import InvalidInput
from rewardflow.settings.run_settings import AlgorithmSettings, LossKlEstimator

ALL_BT = torch.ones_like(MASK_BT)

# verl 0.9.1, kl_penalty(NEW, BEHAVIOUR, name) with k1, k2, low_var_kl, abs, k1+ and k3+, and the gradient of its sum.
KL_BT = {
    "k1": [[0.0, 0.5, 1.5, 0.1], [0.2, -0.5, 1.1, 1.0], [0.0, 23.6, 0.2, 0.0]],
    "k2": [[0.0, 0.125, 1.125, 0.005], [0.02, 0.125, 0.605, 0.5], [0.0, 278.48, 0.02, 0.0]],
    "k3": [
        [0.0, 0.1065307, 0.7231302, 0.0048374],
        [0.0187308, 0.1487212, 0.4328711, 0.3678794],
        [0.0, 10.0, 0.0187308, 0.0],
    ],
    "abs": [[0.0, 0.5, 1.5, 0.1], [0.2, 0.5, 1.1, 1.0], [0.0, 23.6, 0.2, 0.0]],
}
GRAD_BT = {
    "k1": [[1.0] * 4] * 3,
    "k2": [[0.0, 0.5, 1.5, 0.1], [0.2, -0.5, 1.1, 1.0], [0.0, 23.6, 0.2, 0.0]],
    "k3": [
        [0.0, 0.3934693, 0.7768698, 0.0951626],
        [0.1812692, -0.6487212, 0.6671289, 0.6321205],
        [0.0, 0.0, 0.1812692, 0.0],
    ],
    "abs": [[0.0, 1.0, 1.0, 1.0], [1.0, -1.0, 1.0, 1.0], [0.0, 1.0, 1.0, 0.0]],
}
KL_BT |= {"k1+": KL_BT["k1"], "k3+": KL_BT["k3"]}
GRAD_BT |= {"k1+": GRAD_BT["k2"], "k3+": GRAD_BT["k2"]}


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_each_token_has_the_estimate_and_the_gradient_it_has_in_verl(estimator: LossKlEstimator) -> None:
    log_probs_BT = NEW_BT.clone().requires_grad_()
    kl_BT = kl_to_reference(log_probs_BT, BEHAVIOUR_BT, ALL_BT, estimator)
    torch.testing.assert_close(kl_BT, torch.tensor(KL_BT[estimator]), atol=1e-6, rtol=1e-5)
    kl_BT.sum().backward()
    torch.testing.assert_close(log_probs_BT.grad, torch.tensor(GRAD_BT[estimator]), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_nothing_in_a_masked_row_reaches_the_estimate_or_the_gradient(estimator: LossKlEstimator) -> None:
    log_probs_BT, reference_BT = NEW_BT.clone(), BEHAVIOUR_BT.clone()
    log_probs_BT[0], reference_BT[1] = float("nan"), float("-inf")
    log_probs_BT.requires_grad_()
    mask_BT = ALL_BT.clone()
    mask_BT[:2] = 0
    kl_BT = kl_to_reference(log_probs_BT, reference_BT, mask_BT, estimator)
    assert torch.equal(kl_BT[:2], torch.zeros(2, 4))
    torch.testing.assert_close(kl_BT[2], torch.tensor(KL_BT[estimator][2]), atol=1e-6, rtol=1e-5)
    kl_BT.sum().backward()
    assert torch.equal(log_probs_BT.grad[:2], torch.zeros(2, 4))  # type: ignore[index]


def test_k1_and_k3_agree_with_the_exact_divergence_in_expectation() -> None:
    policy_V = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    reference_V = torch.tensor([0.4, 0.4, 0.1, 0.1], dtype=torch.float64)
    exact = (policy_V * (policy_V / reference_V).log()).sum()
    every_word = torch.ones(4)
    for estimator in ("k1", "k3"):
        estimates_V = kl_to_reference(policy_V.log(), reference_V.log(), every_word, estimator)
        torch.testing.assert_close((policy_V * estimates_V).sum(), exact)


def test_k3_is_what_one_gets_without_asking() -> None:
    assert torch.equal(
        kl_to_reference(NEW_BT, BEHAVIOUR_BT, ALL_BT), kl_to_reference(NEW_BT, BEHAVIOUR_BT, ALL_BT, "k3")
    )


def test_an_unknown_estimator_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(InvalidInput, match="estimator must be one of k1, k2, k3, abs, k1\\+, k3\\+, got 'k4'"):
        kl_to_reference(NEW_BT, BEHAVIOUR_BT, ALL_BT, "k4")  # type: ignore[arg-type]


def test_the_table_has_every_estimator_of_the_settings() -> None:
    hints = get_type_hints(AlgorithmSettings)
    assert set(ESTIMATORS) == set(get_args(hints["kl_estimator"]))
    without_gradients = {name for name in ESTIMATORS if not name.endswith("+")}
    assert set(get_args(hints["reward_kl_estimator"])) == without_gradients


def test_the_mean_gradient_of_k1_and_k3_with_a_plus_is_that_of_the_divergence() -> None:
    logits_V = torch.tensor([0.3, -0.2, 1.0, 0.1], dtype=torch.float64, requires_grad=True)
    reference_V = torch.tensor([0.4, 0.4, 0.1, 0.1], dtype=torch.float64).log()
    log_probs_V = logits_V.log_softmax(0)
    exact = (log_probs_V.exp() * (log_probs_V - reference_V)).sum()
    (expected_V,) = torch.autograd.grad(exact, logits_V, retain_graph=True)
    for estimator in ("k1+", "k3+"):
        estimates_V = kl_to_reference(log_probs_V, reference_V, torch.ones(4), estimator)
        weighed = (log_probs_V.exp().detach() * estimates_V).sum()  # each word as often as it is sampled
        (found_V,) = torch.autograd.grad(weighed, logits_V, retain_graph=True)
        torch.testing.assert_close(found_V, expected_V)
