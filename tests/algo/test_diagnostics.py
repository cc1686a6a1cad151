"""Diagnostics: measures of how far two policies are apart, the same however a batch is split."""

from __future__ import annotations

import functools
import operator

import pytest
import torch
from algo.policies import BEHAVIOUR_BT, MASK_BT, OLD_BT
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.algo.diagnostics import OffPolicySums, off_policy_sums

WHOLE = off_policy_sums(OLD_BT, BEHAVIOUR_BT, MASK_BT)


def sums_of(rows: list[int]) -> OffPolicySums:
    return off_policy_sums(OLD_BT[rows], BEHAVIOUR_BT[rows], MASK_BT[rows])


@given(cut=st.integers(0, 3), order=st.permutations(range(3)))
def test_sums_of_parts_are_the_sums_of_the_whole(cut: int, order: list[int]) -> None:
    parts = [sums_of(rows) for rows in (order[:cut], order[cut:])]
    assert functools.reduce(operator.add, parts).measures() == pytest.approx(WHOLE.measures())


def test_measures_are_what_their_names_say() -> None:
    mask_BT = MASK_BT.bool()
    difference_N = (OLD_BT.double().exp() - BEHAVIOUR_BT.double().exp()).abs()[mask_BT]
    ratio_N = (OLD_BT.double() - BEHAVIOUR_BT.double())[mask_BT].exp()
    response_B = torch.tensor([row[mask].sum() for row, mask in zip(OLD_BT - BEHAVIOUR_BT, mask_BT, strict=True)]).exp()
    assert WHOLE.measures() == pytest.approx(
        {
            "prob_diff_mean": difference_N.mean().item(),
            "prob_diff_max": difference_N.max().item(),
            "prob_diff_std": difference_N.std().item(),
            "kl_k1": -ratio_N.log().mean().item(),
            "kl_k3": (ratio_N - 1 - ratio_N.log()).mean().item(),
            "ratio_mean": ratio_N.mean().item(),
            "ratio_max": ratio_N.max().item(),
            "ratio_min": ratio_N.min().item(),
            "ratio_std": ratio_N.std().item(),
            "effective_share": (ratio_N.sum() ** 2 / (10 * (ratio_N**2).sum())).item(),
            "response_effective_share": (response_B.sum() ** 2 / (3 * (response_B**2).sum())).item(),
        },
        rel=1e-5,
    )


def test_of_one_policy_with_itself_nothing_differs_and_every_sample_counts() -> None:
    measures = off_policy_sums(OLD_BT, OLD_BT, MASK_BT).measures()
    apart = {"prob_diff_mean", "prob_diff_max", "prob_diff_std", "kl_k1", "kl_k3", "ratio_std"}
    assert {name for name, value in measures.items() if value == 0.0} == apart
    assert {value for name, value in measures.items() if name not in apart} == {1.0}


def test_nothing_outside_the_mask_is_measured() -> None:
    old_BT, mask_BT = OLD_BT.clone(), MASK_BT.clone()
    old_BT[1] = torch.tensor([float("nan"), float("inf"), float("-inf"), 1e30])
    mask_BT[1] = 0
    assert off_policy_sums(old_BT, BEHAVIOUR_BT, mask_BT).measures() == pytest.approx(sums_of([0, 2]).measures())


def test_of_no_tokens_there_is_nothing_to_say() -> None:
    nothing = off_policy_sums(OLD_BT, BEHAVIOUR_BT, torch.zeros_like(MASK_BT))
    assert nothing.measures() == {}
    assert (nothing + WHOLE).measures() == WHOLE.measures()


def test_sums_keep_no_gradient() -> None:
    sums = off_policy_sums(OLD_BT.clone().requires_grad_(), BEHAVIOUR_BT, MASK_BT)
    assert not any(total.requires_grad for total in (*sums.sums.values(), *sums.maxima.values()))
