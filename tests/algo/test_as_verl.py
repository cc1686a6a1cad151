"""The numbers are those that verl 0.9.1 gives: recorded values, which `make test-oracle` compares with verl itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from algo import verl_cases as cases
from algo.groups import FIXED

from rewardflow.algo.advantages import make_advantages
from rewardflow.algo.diagnostics import off_policy_sums
from rewardflow.algo.estimator import TokenTargets
from rewardflow.algo.losses import policy_loss
from rewardflow.algo.reward_kl import AdaptiveKl
from rewardflow.algo.value_loss import value_loss
from rewardflow.flow.records import Precomputed
from rewardflow.settings.run_settings import AlgorithmSettings
from rewardflow.types import Rollout

VERL: dict[str, Any] = cases.recorded()
CLOSE = {"atol": 2e-5, "rtol": 1e-5}


@pytest.mark.parametrize("name", cases.ADVANTAGES)
def test_each_token_has_its_advantage(name: str) -> None:
    batch = cases.batch_of(name)
    advantages = make_advantages(cases.ADVANTAGES[name])(batch.groups, batch.precomputed_of)
    torch.testing.assert_close(batch.tokens_of(advantages), torch.tensor(VERL["advantages"][name]), **CLOSE)


@pytest.mark.parametrize("name", cases.LOSSES)
def test_the_loss_has_its_sum_and_each_token_its_gradient(name: str) -> None:
    log_probs_BT = cases.NEW_BT.clone().requires_grad_()
    loss = policy_loss(cases.LOSSES[name], **{**cases.TOKENS, "log_probs_BT": log_probs_BT})
    loss.loss_BT.sum().backward()
    assert loss.loss_BT.sum().item() == pytest.approx(VERL["losses"][name]["sum"], rel=1e-5, abs=2e-6)
    torch.testing.assert_close(log_probs_BT.grad, torch.tensor(VERL["losses"][name]["gradient"]), **CLOSE)


def test_values_make_the_advantages_and_returns_of_gae() -> None:
    mask_BT = FIXED.mask_BT.bool()
    by_rollout = {
        (rollout.group_id, rollout.index): values_T[mask_T]
        for (rollout, _), values_T, mask_T in zip(FIXED.scored, cases.VALUES_BT, mask_BT, strict=True)
    }

    def values_of(rollout: Rollout) -> torch.Tensor:
        return by_rollout[rollout.group_id, rollout.index]

    settings = AlgorithmSettings(advantage="gae", discount=cases.DISCOUNT, lam=cases.LAM)
    found = make_advantages(settings)(FIXED.groups, lambda rollout: Precomputed(values=values_of(rollout)))
    targets = [one for group in found for one in group]
    for row, target in enumerate(targets):
        assert isinstance(target, TokenTargets)
        for name, found_T in (("advantages", target.advantages_T), ("returns", target.returns_T)):
            torch.testing.assert_close(found_T, torch.tensor(VERL["gae"][name][row])[mask_BT[row]], **CLOSE)


@pytest.mark.parametrize("name", cases.VALUE_CLIPS)
def test_the_value_loss_has_its_sum_its_clipped_share_and_each_token_its_gradient(name: str) -> None:
    values_BT = cases.NEW_VALUES_BT.clone().requires_grad_()
    loss = value_loss(values_BT, cases.VALUES_BT, cases.RETURNS_BT, FIXED.mask_BT, cases.VALUE_CLIPS[name])
    loss.loss_BT.sum().backward()
    expected = VERL["value_losses"][name]
    assert loss.loss_BT.sum().item() == pytest.approx(expected["sum"], rel=1e-5)
    assert loss.clipped_BT.sum().item() / FIXED.mask_BT.sum().item() == pytest.approx(expected["clipped"])
    torch.testing.assert_close(values_BT.grad, torch.tensor(expected["gradient"]), **CLOSE)


def test_the_coefficient_of_kl_follows_the_target() -> None:
    given = dict(cases.ADAPTED)
    seen = given.pop("seen")
    controller, coefs = AdaptiveKl(**given), []
    for kl, num_rollouts in seen:
        controller = controller.after(kl, num_rollouts)
        coefs.append(controller.coef)
    assert coefs == pytest.approx(VERL["adapted"])


def test_diagnostics_measure_the_same() -> None:
    measures = off_policy_sums(cases.OLD_BT, cases.BEHAVIOUR_BT, cases.MASK_BT).measures()
    assert {name: measures[name] for name in VERL["off_policy"]} == pytest.approx(VERL["off_policy"], rel=1e-5)
