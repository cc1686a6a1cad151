"""Advantages per component: each is normalised by itself, then weighed, so that none drowns the others."""

from __future__ import annotations

import pytest

import rewardflow as rf
from rewardflow.algo.advantages import make_advantages
from rewardflow.errors import InvalidInput
from rewardflow.flow.protocols import Advantages
from rewardflow.settings.run_settings import AlgorithmSettings


def group(*rewards: rf.Reward) -> rf.ScoredGroup:
    rollouts = tuple(
        rf.Rollout(group_id="g", index=i, group_size=len(rewards), response="x", response_mask=[1, 1])
        for i in range(len(rewards))
    )
    return rf.ScoredGroup(group_id="g", step=0, group_size=len(rewards), rollouts=rollouts, rewards=rewards)


def scored(right: float, style: float) -> rf.Reward:
    return rf.Reward(value=100 * right + style, components={"right": right, "style": style})


def advantages(**weights: float) -> Advantages:
    return make_advantages(AlgorithmSettings(component_weights=weights))


GROUP = group(scored(1.0, 0.0), scored(0.0, 0.1), scored(1.0, 0.1), scored(0.0, 0.0))


def test_each_component_counts_as_its_weight_says_whatever_its_spread() -> None:
    (found,) = advantages(right=1.0, style=1.0)([GROUP])
    assert found == pytest.approx([0.0, 0.0, found[2], -found[2]], abs=1e-4)
    assert found[2] == pytest.approx(2 * 0.8660, abs=1e-3)
    (of_sum,) = make_advantages(AlgorithmSettings())([GROUP])
    assert of_sum[1] < -0.8, "in the plain sum the small component is drowned"


def test_weights_scale_and_may_turn_a_component_around() -> None:
    (right,) = advantages(right=1.0)([GROUP])
    (style,) = advantages(style=1.0)([GROUP])
    (both,) = advantages(right=2.0, style=-0.5)([GROUP])
    assert both == pytest.approx([2.0 * one - 0.5 * other for one, other in zip(right, style, strict=True)])


def test_a_failed_verdict_has_no_advantage_and_no_vote() -> None:
    failed = group(scored(1.0, 0.0), rf.Reward(kind="timeout"), scored(0.0, 0.5))
    (found,) = advantages(right=1.0, style=1.0)([failed])
    assert found[1] == 0.0
    assert found[0] == pytest.approx(-found[2])


def test_equal_components_give_exactly_zero() -> None:
    (found,) = advantages(right=1.0, style=1.0)([group(scored(1.0, 0.5), scored(1.0, 0.5))])
    assert found == [0.0, 0.0]


def test_advantages_of_tokens_are_summed_token_by_token() -> None:
    settings = AlgorithmSettings(component_weights={"right": 1.0, "style": 1.0}, discount=0.5)
    (found,) = make_advantages(settings)([GROUP])
    assert found[2].tolist() == pytest.approx([0.8660, 1.7320], abs=1e-3)


def test_a_component_that_a_verdict_lacks_is_named() -> None:
    with pytest.raises(InvalidInput, match="'clarity' is missing in group 'g'; it has right, style"):
        advantages(clarity=1.0)([GROUP])


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "opo", "grpo_passk"])
def test_a_score_in_place_of_a_failure_has_no_advantage_for_the_components_that_it_lacks(estimator: str) -> None:
    imputed = rf.Reward(value=0.0, kind="timeout", status="scored", imputed=True)
    of = make_advantages(AlgorithmSettings(advantage=estimator, component_weights={"right": 1.0, "style": 1.0}))
    good, bad = scored(1.0, 0.5), scored(0.0, 0.1)
    (found,) = of([group(good, imputed, bad)])
    (without,) = of([group(good, rf.Reward(kind="timeout"), bad)])
    assert found == without
    assert found[1] == 0.0
    assert of([group(imputed, imputed)]) == [[0.0, 0.0]]
    partly = rf.Reward(value=1.0, components={"right": 1.0}, imputed=True)
    (right_alone,) = of([group(good, partly, bad)])
    (right,) = make_advantages(AlgorithmSettings(advantage=estimator, component_weights={"right": 1.0}))(
        [group(good, partly, bad)]
    )
    assert right_alone[1] == right[1]


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"component_weights": {"a": 0.0}}, "at least one weight must differ from 0"),
        ({"component_weights": {"a": float("nan")}}, "must be a finite number"),
        (
            {"component_weights": {"a": 1.0}, "advantage": "gae"},
            "component_weights are for grpo, grpo_passk, rloo, opo",
        ),
        ({"component_weights": {"a": 1.0}, "reward_kl_coef": 0.1}, "reward_kl_coef"),
    ],
)
def test_weights_that_cannot_work_are_refused(settings: dict[str, object], rule: str) -> None:
    with pytest.raises(InvalidInput, match=rule):
        AlgorithmSettings(**settings)  # type: ignore[arg-type]
