"""Policy losses: per token equal to verl's in value and gradient, and silent outside the mask."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest
import torch
from algo.policies import ADVANTAGES_BT, BEHAVIOUR_BT, MASK_BT, NEW_BT, OLD_BT
from torch import Tensor

from rewardflow.algo.losses import LOSSES, TokenLoss, policy_loss
from rewardflow.errors import InvalidInput
from rewardflow.settings.run_settings import AlgorithmSettings

PPO = AlgorithmSettings(loss="ppo", clip_low=0.2, clip_high=0.2, dual_clip=3.0)
ASYMMETRIC = AlgorithmSettings(loss="ppo", clip_low=0.1, clip_high=0.5, dual_clip=2.0)
DECOUPLED = AlgorithmSettings(loss="decoupled", clip_low=0.2, clip_high=0.2, dual_clip=3.0, behaviour_weight_cap=5.0)

# verl 0.9.1, compute_policy_loss_vanilla with loss_agg_mode="token-mean" and a mask of one token at a time; for
# `decoupled`, with rollout_is_weights = exp(OLD - BEHAVIOUR), those above 5 set to 0.
LOSS_BT = {
    "ppo": [[-0.8841368, -0.96, -0.4852245, -0.8], [1.3262053, 0.96, 3.6, 0.96], [-0.5, -0.6, 0.0, 0.0]],
    "asymmetric": [[-0.8841368, -1.2, -0.4852245, -0.8], [1.3262053, 1.08, 2.4, 1.08], [-0.5, -0.75, 0.0, 0.0]],
    "decoupled": [[-0.8, -0.96, 0.0, -0.8841368], [1.4656836, 0.96, 2.1835105, 0.0], [-0.5, -0.2207277, 0.0, 0.0]],
}
GRAD_BT = {
    "ppo": [[-0.8841368, 0.0, -0.4852245, -0.8], [1.3262053, 0.0, 0.0, 0.0], [-0.5, 0.0, 0.0, 0.0]],
    "asymmetric": [[-0.8841368, 0.0, -0.4852245, -0.8], [1.3262053, 0.0, 0.0, 0.0], [-0.5, 0.0, 0.0, 0.0]],
    "decoupled": [[-0.8, 0.0, 0.0, -0.8841368], [1.4656836, 0.0, 0.0, 0.0], [-0.5, 0.0, 0.0, 0.0]],
}
CASES = {"ppo": PPO, "asymmetric": ASYMMETRIC, "decoupled": DECOUPLED}
ALL = {
    **CASES,
    "cispo": AlgorithmSettings(loss="cispo"),
    "gspo": AlgorithmSettings(loss="gspo"),
    "to_behaviour": AlgorithmSettings(ratio_to="behaviour"),
    "policy_gradient": AlgorithmSettings(loss="policy_gradient"),
    "weighed_by_response": AlgorithmSettings(loss="gspo", behaviour_weights="sequence", above_cap="truncate"),
    "rejected": AlgorithmSettings(loss="policy_gradient", reject="sequence_mean", reject_outside=(0.1, 3.0)),
}


def loss_of(settings: AlgorithmSettings, log_probs_BT: Tensor = NEW_BT, **changes: Tensor | None) -> TokenLoss:
    tensors: dict[str, Tensor | None] = {
        "old_BT": OLD_BT,
        "behaviour_BT": BEHAVIOUR_BT,
        "advantages_BT": ADVANTAGES_BT,
        "mask_BT": MASK_BT,
        **changes,
    }
    return policy_loss(settings, log_probs_BT=log_probs_BT, **tensors)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", CASES)
def test_each_token_has_the_loss_and_the_gradient_it_has_in_verl(case: str) -> None:
    log_probs_BT = NEW_BT.clone().requires_grad_()
    loss = loss_of(CASES[case], log_probs_BT)
    torch.testing.assert_close(loss.loss_BT, torch.tensor(LOSS_BT[case]))
    loss.loss_BT.sum().backward()
    torch.testing.assert_close(log_probs_BT.grad, torch.tensor(GRAD_BT[case]))


def test_sums_divided_by_tokens_are_the_metrics_of_verl() -> None:
    # verl 0.9.1, compute_policy_loss_vanilla on the whole mask: its metrics times the 10 tokens.
    sums = {name: total.item() for name, total in loss_of(PPO).sums.items()}
    assert sums["tokens"] == 10
    assert sums["clipped_low"] + sums["clipped_high"] == 4  # pg_clipfrac
    assert sums["clipped_dual"] == 1  # pg_clipfrac_lower
    assert sums["kl_old_k1"] == pytest.approx(-19.3)  # ppo_kl


def test_sums_say_which_side_was_clipped_and_how_far_the_ratios_are() -> None:
    mask_BT = MASK_BT.clone()
    mask_BT[2, 1] = 0  # whose ratio would hide all others
    sums = {name: total.item() for name, total in loss_of(PPO, mask_BT=mask_BT).sums.items()}
    log_ratios = torch.tensor([0.1, 0.5, -0.5, 0.0, 0.1, -0.5, 1.6, -2.0, 0.0], dtype=torch.float64)
    assert (sums["clipped_low"], sums["clipped_high"]) == (2, 1)
    assert sums["ratio"] == pytest.approx(log_ratios.exp().sum().item())
    assert sums["kl_old_k3"] == pytest.approx((log_ratios.exp() - 1 - log_ratios).sum().item())


def test_sums_of_behaviour_weights_are_of_those_that_were_applied() -> None:
    sums = loss_of(DECOUPLED).sums
    applied = torch.tensor([-0.1, 0.0, 0.1, 0.1, 0.0, -0.5, 0.0, -1.0], dtype=torch.float64).exp()
    assert sums["behaviour_weight"].item() == pytest.approx(applied.sum().item())
    assert sums["behaviour_weight_squared"].item() == pytest.approx(applied.square().sum().item())
    assert sums["behaviour_capped"].item() == 2


@pytest.mark.parametrize("case", ALL)
def test_sums_are_scalars_without_gradient(case: str) -> None:
    sums = loss_of(ALL[case], NEW_BT.clone().requires_grad_()).sums
    assert all(
        total.shape == () and total.dtype == torch.float64 and not total.requires_grad for total in sums.values()
    )


def test_without_a_cap_every_token_keeps_its_weight() -> None:
    uncapped = AlgorithmSettings(loss="decoupled", behaviour_weight_cap=None)
    weights_BT = torch.where(MASK_BT.bool(), (OLD_BT - BEHAVIOUR_BT).exp(), 0.0)
    torch.testing.assert_close(loss_of(uncapped).loss_BT, torch.tensor(LOSS_BT["ppo"]) * weights_BT)
    assert loss_of(uncapped).sums["behaviour_capped"].item() == 0


def test_without_dual_clip_a_bad_token_that_became_likely_is_pushed_in_full() -> None:
    loss = loss_of(AlgorithmSettings(loss="ppo", dual_clip=None))
    assert loss.loss_BT[1, 2].item() == pytest.approx(1.2 * torch.tensor(1.6).exp().item())
    assert loss.sums["clipped_dual"].item() == 0


@pytest.mark.parametrize("case", ALL)
def test_nothing_in_a_masked_row_reaches_the_loss_the_sums_or_the_gradient(case: str) -> None:
    mask_BT = MASK_BT.clone()
    mask_BT[1] = 0
    clean_BT = NEW_BT.clone().requires_grad_()
    clean = loss_of(ALL[case], clean_BT, mask_BT=mask_BT)
    clean.loss_BT.sum().backward()
    poison = {"old_BT": OLD_BT, "behaviour_BT": BEHAVIOUR_BT, "advantages_BT": ADVANTAGES_BT}
    poisoned = {name: tensor.clone() for name, tensor in poison.items()}
    log_probs_BT = NEW_BT.clone()
    for tensor in (log_probs_BT, *poisoned.values()):
        tensor[1] = torch.tensor([float("nan"), float("inf"), float("-inf"), 1e30])
    log_probs_BT.requires_grad_()

    loss = loss_of(ALL[case], log_probs_BT, mask_BT=mask_BT, **poisoned)
    assert torch.equal(loss.loss_BT, clean.loss_BT)
    assert loss.sums == clean.sums
    loss.loss_BT.sum().backward()
    assert torch.equal(log_probs_BT.grad, clean_BT.grad)  # type: ignore[arg-type]
    assert torch.equal(log_probs_BT.grad[1], torch.zeros(4))  # type: ignore[index]
    assert log_probs_BT.grad[0].any()  # type: ignore[index]


@pytest.mark.parametrize("case", ["gspo", "weighed_by_response", "rejected"])
def test_what_belongs_to_a_response_does_not_depend_on_which_rows_are_together(case: str) -> None:
    whole = loss_of(ALL[case])
    rows = [
        loss_of(
            ALL[case],
            NEW_BT[row : row + 1],
            old_BT=OLD_BT[row : row + 1],
            behaviour_BT=BEHAVIOUR_BT[row : row + 1],
            advantages_BT=ADVANTAGES_BT[row : row + 1],
            mask_BT=MASK_BT[row : row + 1],
        )
        for row in range(3)
    ]
    assert torch.equal(torch.cat([one.loss_BT for one in rows]), whole.loss_BT)
    for name, total in whole.sums.items():
        assert sum(one.sums[name].item() for one in rows) == pytest.approx(total.item())


def test_all_tokens_of_a_response_have_one_ratio_in_gspo() -> None:
    sums = loss_of(ALL["gspo"], mask_BT=torch.tensor([[1, 1, 1, 1], [0] * 4, [0] * 4])).sums
    assert sums["ratio"].item() == pytest.approx(4 * torch.tensor(0.1 / 4).exp().item())  # log-ratios add up to 0.1


def test_on_the_present_policy_every_loss_has_the_gradient_of_the_policy_gradient() -> None:
    for name in LOSSES:
        log_probs_BT = NEW_BT.clone().requires_grad_()
        settings = AlgorithmSettings(loss=name)  # type: ignore[arg-type]
        loss_of(settings, log_probs_BT, old_BT=log_probs_BT, behaviour_BT=NEW_BT).loss_BT.sum().backward()
        torch.testing.assert_close(log_probs_BT.grad, -ADVANTAGES_BT * MASK_BT)


def test_the_ratio_to_the_behaviour_policy_needs_no_old_log_probs() -> None:
    for loss in ("ppo", "cispo", "gspo"):
        to_behaviour = loss_of(AlgorithmSettings(loss=loss, ratio_to="behaviour"), old_BT=torch.full_like(OLD_BT, -9.0))  # type: ignore[arg-type]
        to_old = loss_of(AlgorithmSettings(loss=loss), old_BT=BEHAVIOUR_BT)  # type: ignore[arg-type]
        assert torch.equal(to_behaviour.loss_BT, to_old.loss_BT)
        assert to_behaviour.sums == to_old.sums


def test_cispo_bounds_the_weight_of_a_token_and_never_stops_its_gradient() -> None:
    log_probs_BT = NEW_BT.clone().requires_grad_()
    loss = loss_of(ALL["cispo"], log_probs_BT)
    loss.loss_BT.sum().backward()
    weights_BT = (NEW_BT - OLD_BT).exp().clamp(0.8, 1.2)
    torch.testing.assert_close(log_probs_BT.grad, -ADVANTAGES_BT * weights_BT * MASK_BT)
    assert (
        loss.sums["clipped_low"] + loss.sums["clipped_high"]
        == (MASK_BT.bool() & (weights_BT != (NEW_BT - OLD_BT).exp())).sum()
    )


def test_old_log_probs_may_be_the_present_ones_and_still_give_a_gradient() -> None:
    log_probs_BT = NEW_BT.clone().requires_grad_()
    loss_of(PPO, log_probs_BT, old_BT=log_probs_BT).loss_BT.sum().backward()
    torch.testing.assert_close(log_probs_BT.grad, -ADVANTAGES_BT * MASK_BT)


def test_only_the_present_policy_is_differentiated() -> None:
    fixed = {"old_BT": OLD_BT, "behaviour_BT": BEHAVIOUR_BT, "advantages_BT": ADVANTAGES_BT}
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in fixed.items()}
    loss_of(DECOUPLED, NEW_BT.clone().requires_grad_(), **leaves).loss_BT.sum().backward()
    assert [name for name, leaf in leaves.items() if leaf.grad is not None] == []


def test_half_precision_log_probs_are_compared_in_float32() -> None:
    loss = loss_of(PPO, NEW_BT.bfloat16(), old_BT=OLD_BT.bfloat16(), advantages_BT=ADVANTAGES_BT.bfloat16())
    assert loss.loss_BT.dtype == torch.float32


def test_what_needs_behaviour_log_probs_is_refused_without_them() -> None:
    with pytest.raises(
        InvalidInput, match="loss=decoupled with ratio_to=old, behaviour_weights=token, reject=None compares"
    ):
        loss_of(DECOUPLED, behaviour_BT=None)
    with pytest.raises(InvalidInput, match="behaviour_weights=None, reject=token compares policies"):
        loss_of(AlgorithmSettings(loss="gspo", reject="token"), behaviour_BT=None)
    with pytest.raises(InvalidInput, match="loss=ppo with ratio_to=behaviour"):
        loss_of(ALL["to_behaviour"], behaviour_BT=None)
    loss_of(PPO, behaviour_BT=None)


def test_one_advantage_per_row_is_refused_and_not_spread_by_broadcasting() -> None:
    with pytest.raises(InvalidInput, match=r"advantages_BT must have the shape of mask_BT, got \(3, 1\) and \(3, 4\)"):
        loss_of(PPO, advantages_BT=ADVANTAGES_BT[:, :1])


def test_the_table_has_every_loss_of_the_settings() -> None:
    assert set(LOSSES) == set(get_args(get_type_hints(AlgorithmSettings)["loss"]))
