"""Losses, corrections, KL estimates and diagnostics of random tokens are verl's."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from oracle import verl_calls
from torch import Tensor

from rewardflow.algo.correction import correction
from rewardflow.algo.diagnostics import off_policy_sums
from rewardflow.algo.kl import ESTIMATORS, kl_to_reference
from rewardflow.algo.losses import LOSSES, policy_loss
from rewardflow.algo.value_loss import value_loss
from rewardflow.settings.run_settings import AlgorithmSettings

CLOSE = {"atol": 1e-5, "rtol": 1e-4}


@st.composite
def tokens(draw: st.DrawFn) -> dict[str, Tensor]:
    """Some are far off, beyond every clip and bound; the first response never is: verl divides by what is left."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    shape = (draw(st.integers(1, 5)), draw(st.integers(1, 8)))
    spread = draw(st.sampled_from([0.05, 0.5, 3.0, 15.0]))
    log_probs_BT = -3 * torch.rand(shape, generator=generator)
    others = {name: log_probs_BT + spread * torch.randn(shape, generator=generator) for name in ("old", "behaviour")}
    mask_BT = (torch.rand(shape, generator=generator) > 0.3).long()
    mask_BT[0, 0] = 1
    others["behaviour"][0] = others["old"][0]
    return {
        "log_probs_BT": log_probs_BT,
        "old_BT": others["old"],
        "behaviour_BT": others["behaviour"],
        "advantages_BT": torch.randn(shape, generator=generator),
        "mask_BT": mask_BT,
    }


CORRECTIONS: list[dict[str, Any]] = [
    {},
    *(
        {"behaviour_weights": by, "above_cap": above, "behaviour_weight_cap": cap}
        for by, above, cap in itertools.product(["token", "sequence"], ["leave_out", "truncate"], [1.5, None])
    ),
    *({"reject": by, "reject_outside": (0.6, 1.7)} for by in ("token", "sequence", "sequence_mean")),
    {"behaviour_weights": "sequence", "above_cap": "truncate", "reject": "sequence_mean", "reject_outside": (0.9, 1.2)},
]


@pytest.mark.parametrize("corrected", CORRECTIONS, ids=lambda corrected: "-".join(map(str, corrected.values())))
@pytest.mark.parametrize("loss", LOSSES)
@examples(max_examples=25)
@given(tokens=tokens())
def test_losses_are_those_of_verl(loss: Any, corrected: dict[str, Any], tokens: dict[str, Tensor]) -> None:
    if loss == "gspo" and corrected.get("reject") == "token":
        return  # verl takes the response's ratio over the tokens that are left, and we over all
    algorithm = AlgorithmSettings(loss=loss, clip_high=0.3, **corrected)
    expected, gradient_BT = verl_calls.loss(algorithm, tokens)
    log_probs_BT = tokens["log_probs_BT"].clone().requires_grad_()
    total = policy_loss(algorithm, **{**tokens, "log_probs_BT": log_probs_BT}).loss_BT.sum()
    total.backward()
    torch.testing.assert_close(total.detach(), expected, **CLOSE)
    torch.testing.assert_close(log_probs_BT.grad, gradient_BT, **CLOSE)


@pytest.mark.parametrize("corrected", CORRECTIONS[1:], ids=lambda corrected: "-".join(map(str, corrected.values())))
@given(tokens=tokens())
def test_weights_and_masks_are_those_of_verl(corrected: dict[str, Any], tokens: dict[str, Tensor]) -> None:
    algorithm = AlgorithmSettings(**corrected)
    compared = tokens["old_BT"], tokens["behaviour_BT"], tokens["mask_BT"]
    found = correction(algorithm, *compared[:2], compared[2].bool())
    if algorithm.weigh_by is not None:
        torch.testing.assert_close(found.weights_BT, verl_calls.weights(algorithm, *compared), **CLOSE)
    if algorithm.reject is not None:
        assert found.kept_BT is not None
        assert torch.equal(found.kept_BT, verl_calls.kept(algorithm, *compared).bool())


@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(tokens=tokens())
def test_kl_estimates_and_their_gradients_are_those_of_verl(estimator: Any, tokens: dict[str, Tensor]) -> None:
    log_probs_BT = tokens["log_probs_BT"].clone().requires_grad_()
    kl_BT = kl_to_reference(log_probs_BT, tokens["old_BT"], torch.ones_like(tokens["mask_BT"]), estimator)
    kl_BT.sum().backward()
    expected_BT, gradient_BT = verl_calls.kl(tokens["log_probs_BT"], tokens["old_BT"], estimator)
    torch.testing.assert_close(kl_BT.detach(), expected_BT, **CLOSE)
    torch.testing.assert_close(log_probs_BT.grad, gradient_BT, **CLOSE)


@given(tokens=tokens().filter(lambda tokens: int(tokens["mask_BT"].sum()) > 1))
def test_diagnostics_are_those_of_verl(tokens: dict[str, Tensor]) -> None:
    # Ratios that verl does not bound as we do, and probabilities above 1, are nobody's.
    old_BT, behaviour_BT = (tokens[name].clamp(-8.0, 0.0) for name in ("old_BT", "behaviour_BT"))
    expected = verl_calls.off_policy(old_BT, behaviour_BT, tokens["mask_BT"])
    measures = off_policy_sums(old_BT, behaviour_BT, tokens["mask_BT"]).measures()
    assert {name: measures[name] for name in expected} == pytest.approx(expected, rel=1e-3, abs=1e-5)


@given(tokens=tokens(), clip=st.one_of(st.none(), st.floats(0.01, 2.0)), seed=st.integers(0, 2**31))
def test_the_value_loss_its_clipped_share_and_its_gradient_are_those_of_verl(
    tokens: dict[str, Tensor], clip: float | None, seed: int
) -> None:
    mask_BT = tokens["mask_BT"]
    generator = torch.Generator().manual_seed(seed)
    values_BT, old_BT, returns_BT = (torch.randn(mask_BT.shape, generator=generator) for _ in range(3))
    total, clipped, gradient_BT = verl_calls.value_loss(values_BT, old_BT, returns_BT, mask_BT, clip)
    leaf_BT = values_BT.clone().requires_grad_()
    found = value_loss(leaf_BT, old_BT, returns_BT, mask_BT, clip)
    found.loss_BT.sum().backward()
    torch.testing.assert_close(found.loss_BT.sum().detach(), total, **CLOSE)
    torch.testing.assert_close(leaf_BT.grad, gradient_BT, **CLOSE)
    assert found.clipped_BT.sum().item() / mask_BT.sum().item() == pytest.approx(clipped, abs=1e-5)
