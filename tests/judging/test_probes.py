"""Probes are complete groups of their own that differ from the labelled answers in one answer alone."""

from __future__ import annotations

import pytest

import rewardflow as rf
from rewardflow.errors import InvalidInput
from rewardflow.judging.labelled_answers import LabelledAnswer
from rewardflow.judging.probes import ATTACKS, PADDING, make_probes


def answers(num_groups: int = 3) -> list[LabelledAnswer]:
    return [
        LabelledAnswer(
            rf.Rollout(group_id=f"g{i}", index=j, group_size=2, prompt=f"q{i}", response=f"{i} {{x}} {j}"), float(j)
        )
        for i in range(num_groups)
        for j in range(2)
    ]


def test_a_judge_of_single_answers_gets_groups_of_one() -> None:
    probes = make_probes(answers(), num_probes=2, threshold=0.5, sees_groups=False)
    kinds = [probe.kind for probe in probes]
    assert {kind: kinds.count(kind) for kind in ("answer", "repeat", "padded", "attack")} == {
        "answer": 6,
        "repeat": 2,
        "padded": 2,
        "attack": 2 * len(ATTACKS),
    }
    for probe in probes[6:]:
        assert (probe.rollout.index, probe.rollout.group_size, len(probe.rollouts)) == (0, 1, 1)
        assert probe.rollout.prompt == probe.target.rollout.prompt
    assert all(probe.target.label == 0.0 for probe in probes if probe.kind == "attack")


def test_a_judge_that_compares_gets_the_whole_group_with_one_answer_changed() -> None:
    probes = make_probes(answers(), num_probes=6, threshold=0.5, sees_groups=True)
    for probe in probes:
        assert [rollout.index for rollout in probe.rollouts] == [0, 1]
        assert len({rollout.group_id for rollout in probe.rollouts}) == 1
        changed = [
            one.index
            for one in probe.rollouts
            if one.response != f"{probe.target.rollout.prompt[1:]} {{x}} {one.index}"
        ]
        assert changed == ([] if probe.kind in ("answer", "repeat") else [probe.target.rollout.index])
    padded = next(probe for probe in probes if probe.kind == "padded")
    assert padded.rollout.response == padded.target.rollout.response + PADDING


def test_no_two_probes_share_a_place_but_those_of_one_labelled_group() -> None:
    probes = make_probes(answers(), num_probes=6, threshold=0.5, sees_groups=True)
    assert len({probe.rollout.place for probe in probes}) == len(probes)
    again = make_probes(answers(), num_probes=6, threshold=0.5, sees_groups=True)
    assert probes == again


def test_fewer_than_no_probes_are_refused() -> None:
    assert len(make_probes(answers(), num_probes=0, threshold=0.5, sees_groups=False)) == 6
    with pytest.raises(InvalidInput, match="at least 0, got -1"):
        make_probes(answers(), num_probes=-1, threshold=0.5, sees_groups=False)
