"""A test of a judge finds what was planted in it: noise, generosity, a taste for length, a magic word."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

import rewardflow as rf
from rewardflow.judging.judge_test import JudgeTest, judge_test_of
from rewardflow.judging.labelled_answers import LabelledAnswer
from rewardflow.judging.probes import ATTACKS, make_probes

Score = Callable[[rf.Rollout, float], rf.Reward | float]


def answers(num_groups: int = 20, size: int = 4) -> list[LabelledAnswer]:
    draw = random.Random(3)
    return [
        LabelledAnswer(
            rf.Rollout(group_id=f"g{i}", index=j, group_size=size, response="word " * draw.randint(1, 40)),
            draw.randint(0, 4) / 4,
        )
        for i in range(num_groups)
        for j in range(size)
    ]


def figures_for(score: Score, *, sees_groups: bool = False) -> JudgeTest:
    probes = make_probes(answers(), num_probes=8, threshold=0.5, sees_groups=sees_groups)
    rewards = {}
    for probe in probes:
        found = score(probe.rollout, probe.target.label)
        rewards[probe.rollout.place] = found if isinstance(found, rf.Reward) else rf.Reward(value=found)
    return judge_test_of("judge", probes, rewards, threshold=0.5)


def test_a_judge_that_repeats_the_labels_is_perfect() -> None:
    test = figures_for(lambda rollout, label: rf.Reward(value=label, attempts=1, latency_s=2.0, cost_usd=0.25))
    for name in ("accuracy", "kappa", "spearman", "ordered_pairs"):
        found = test.agreement[name]
        assert found is not None
        assert found.value == pytest.approx(1.0)
    assert test.calibration is not None
    assert test.calibration.error == 0.0
    assert (test.equal_share, test.repeat_distance, test.attacks_raised_share) == (1.0, 0.0, 0.0)
    assert test.padding_shift is not None
    assert test.padding_shift.value == 0.0
    assert test.length_bias is None, "there is no excess of score that could follow the length"
    assert test.latency_s.p50 == 2.0
    assert test.cost_of_answers_usd == 80 * 0.25
    assert test.cost_usd == 0.25 * (80 + 8 + 8 + 8 * len(ATTACKS))


def test_a_random_judge_is_at_chance() -> None:
    draw = random.Random(1)
    test = figures_for(lambda rollout, label: draw.random())
    for name, chance in (("kappa", 0.0), ("spearman", 0.0), ("ordered_pairs", 0.5)):
        found = test.agreement[name]
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        assert found.low < chance < found.high
    assert test.equal_share == 0.0


def test_a_taste_for_length_is_seen_in_the_answers_and_in_padding() -> None:
    test = figures_for(lambda rollout, label: label + len(rollout.response) / 2000)
    assert test.length_bias is not None
    assert test.length_bias.value > 0.2
    assert test.padding_shift is not None
    assert test.padding_shift.low is not None
    assert test.padding_shift.low > 0.1


def test_a_judge_that_believes_a_plea_is_found_out() -> None:
    test = figures_for(lambda rollout, label: 1.0 if "full marks" in rollout.response else label)
    by_name = {one.name: one for one in test.attacks}
    assert (by_name["plea"].raised, by_name["plea"].tried) == (8, 8)
    assert by_name["threat"].raised == 0
    assert test.attacks_raised_share == pytest.approx(1 / len(ATTACKS))


def test_failures_are_counted_and_never_scored() -> None:
    def score(rollout: rf.Rollout, label: float) -> rf.Reward | float:
        return rf.Reward(kind="unparsable") if rollout.index == 0 else label

    test = figures_for(score)
    assert (test.answers, test.scored, dict(test.failed)) == (80, 60, {"unparsable": 20})
    assert test.agreement["accuracy"] is not None
    assert test.agreement["accuracy"].value == 1.0


def test_a_test_that_stopped_early_tells_nothing_of_what_was_not_asked() -> None:
    def without_money_for_attacks(rollout: rf.Rollout, label: float) -> rf.Reward | float:
        return rf.Reward(kind="budget") if "#attack" in rollout.group_id else label

    test = figures_for(without_money_for_attacks)
    assert test.attacks_raised_share is None
    assert {one.name: one.tried for one in test.attacks} == dict.fromkeys(ATTACKS, 0)

    def without_money_for_most(rollout: rf.Rollout, label: float) -> rf.Reward:
        is_asked = rollout.group_id == "g0"
        return rf.Reward(value=label, cost_usd=0.5) if is_asked else rf.Reward(kind="budget")

    stopped = figures_for(without_money_for_most)
    assert (stopped.answers, stopped.judged, stopped.scored) == (80, 4, 4)


def test_an_attack_on_an_answer_without_a_score_is_no_attempt() -> None:
    test = figures_for(lambda rollout, label: label if "#" in rollout.group_id else rf.Reward(kind="unparsable"))
    assert test.attacks_raised_share is None
    failing = figures_for(lambda rollout, label: rf.Reward(kind="unparsable") if "#" in rollout.group_id else label)
    assert (failing.attacks_raised_share, failing.attacks[0].failed, failing.attacks[0].tried) == (0.0, 8, 8)


def test_the_worst_disagreements_come_first_with_what_the_judge_said() -> None:
    def score(rollout: rf.Rollout, label: float) -> rf.Reward:
        is_wrong = (rollout.group_id, rollout.index) == ("g7", 2)
        return rf.Reward(value=label + 3.0 if is_wrong else label, explanation=f"about {rollout.group_id}")

    worst = figures_for(score).worst[0]
    assert (worst.answer.rollout.place, worst.distance, worst.explanation) == ((0, "g7", 2), 3.0, "about g7")


def test_position_bias_and_split_pairs_come_from_what_group_judges_report() -> None:
    test = figures_for(
        lambda rollout, label: rf.Reward(value=label - 0.125 * rollout.index, extras={"shown_as": rollout.index + 1}),
        sees_groups=True,
    )
    assert test.position_bias is not None
    assert test.position_bias.value == pytest.approx(-1.0)
    pairwise = figures_for(
        lambda rollout, label: rf.Reward(value=label, extras={"pairs_split_by_order": 1, "comparisons": 8}),
        sees_groups=True,
    )
    assert pairwise.split_by_order == 0.25
    assert pairwise.first_shown_earns is None  # verdicts of an older journal do not tell
    assert figures_for(lambda rollout, label: label).split_by_order is None


def test_all_answers_of_a_repeated_group_tell_of_the_place_that_they_were_shown_in() -> None:
    probes = make_probes(answers(8, 2), num_probes=8, threshold=0.5, sees_groups=True)
    labels = {one.rollout.place: one.label for one in answers(8, 2)}

    def found(earns_beside_target: float) -> float:
        rewards = {}
        for probe in probes:
            for rollout in probe.rollouts:
                label = labels[0, probe.target.rollout.group_id, rollout.index]
                is_beside = probe.kind == "repeat" and rollout != probe.rollout
                earned = (earns_beside_target if is_beside else 0.125) * rollout.index
                rewards[rollout.place] = rf.Reward(value=label + earned, extras={"shown_as": rollout.index + 1})
        bias = judge_test_of("judge", probes, rewards, threshold=0.5).position_bias
        assert bias is not None
        return bias.value

    assert found(0.125) == pytest.approx(1.0)
    assert found(0.0) < 0.9


def test_a_pairwise_judge_that_prefers_the_first_answer_is_found_out() -> None:
    def split(rollout: rf.Rollout, label: float) -> rf.Reward:
        return rf.Reward(value=0.5, extras={"won": 3.0, "won_shown_first": 3.0, "comparisons": 6})

    found = figures_for(split, sees_groups=True).first_shown_earns
    assert found is not None
    assert found.value == 1.0


def test_a_bad_answer_that_rises_when_it_is_only_judged_again_is_the_chance_beside_the_attacks() -> None:
    test = figures_for(lambda rollout, label: label + 0.5 * ("#" in rollout.group_id))
    assert test.rose_when_repeated == 1.0
    assert test.attacks_raised_share == 1.0
    assert figures_for(lambda rollout, label: label).rose_when_repeated == 0.0
