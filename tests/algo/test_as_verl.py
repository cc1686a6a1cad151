"""The numbers are those that verl 0.9.1 gives: recorded values, which `make test-oracle` compares with verl itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from algo import verl_cases as cases
from algo.groups import FIXED

from rewardflow.algo.advantages import make_advantages
from rewardflow.algo.diagnostics import off_policy_sums
from rewardflow.algo.estimators.gae import AgainstValues, gae
from rewardflow.algo.losses import policy_loss
from rewardflow.algo.reward_kl import AdaptiveKl
from rewardflow.types import Rollout

VERL: dict[str, Any] = cases.recorded()
CLOSE = {"atol": 2e-5, "rtol": 1e-5}


@pytest.mark.parametrize("name", cases.ADVANTAGES)
def test_each_token_has_its_advantage(name: str) -> None:
    batch = cases.batch_of(name)
    advantages = make_advantages(cases.ADVANTAGES[name])(batch.groups, batch.log_probs_of)
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

    advantages = AgainstValues(values_of=values_of, discount=cases.DISCOUNT, lam=cases.LAM)(FIXED.groups)
    torch.testing.assert_close(FIXED.tokens_of(advantages), torch.tensor(VERL["gae"]["advantages"]), **CLOSE)
    for row, (rollout, _) in enumerate(FIXED.scored):
        rewards_T = FIXED.scores_BT[row][mask_BT[row]]
        returns_T = gae(rewards_T, values_of(rollout), cases.DISCOUNT, cases.LAM)[1]
        torch.testing.assert_close(returns_T, torch.tensor(VERL["gae"]["returns"][row])[mask_BT[row]], **CLOSE)


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
