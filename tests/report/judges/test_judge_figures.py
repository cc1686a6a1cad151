"""The figures of judges are rows of text: one column for each judge, a dash where nothing is known."""

from __future__ import annotations

import rewardflow as rf
from rewardflow.judging.agreement import Estimate
from rewardflow.judging.judge_test import JudgeTest, judge_test_of
from rewardflow.judging.labelled_answers import LabelledAnswer
from rewardflow.judging.probes import make_probes
from rewardflow.report.judges.judge_figures import estimate_text, figure_rows


def one_answer(score: float | None) -> JudgeTest:
    answer = LabelledAnswer(rf.Rollout(group_id="g", response="<b>a</b>"), 1.0)
    probes = make_probes([answer], num_probes=0, threshold=0.5, sees_groups=False)
    return judge_test_of("j", probes, {(0, "g", 0): rf.Reward(value=score, cost_usd=0.002)}, threshold=0.5)


def test_every_row_has_a_text_for_each_judge() -> None:
    rows = list(figure_rows([one_answer(1.0), one_answer(None)]))
    assert all(len(row.texts) == 2 and row.note for row in rows)
    by_name = {row.name: row.texts for row in rows}
    assert by_name["accuracy"] == ("1.00", "\N{EN DASH}")
    assert by_name["answers scored"] == ("1 of 1", "0 of 1")
    assert by_name["cost of 1,000 answers"][0] == "$2.00"
    assert "position bias" not in by_name


def test_the_cost_of_answers_is_that_of_the_ones_that_were_judged() -> None:
    answers = [LabelledAnswer(rf.Rollout(group_id=f"g{i}", response="a"), 1.0) for i in range(4)]
    rewards = {
        answer.rollout.place: rf.Reward(kind="budget") if i else rf.Reward(value=1.0, cost_usd=0.002)
        for i, answer in enumerate(answers)
    }
    probes = make_probes(answers, num_probes=0, threshold=0.5, sees_groups=False)
    stopped = judge_test_of("j", probes, rewards, threshold=0.5)
    never = judge_test_of("j", probes, dict.fromkeys(rewards, rf.Reward(kind="budget")), threshold=0.5)
    by_name = {row.name: row.texts for row in figure_rows([stopped, never])}
    assert by_name["cost of 1,000 answers"] == ("$2.00", "\N{EN DASH}")
    assert by_name["attacks that earned"] == ("\N{EN DASH}", "\N{EN DASH}")


def test_an_estimate_is_shown_with_its_interval() -> None:
    assert estimate_text(Estimate(0.5, 0.25, 0.75)) == "0.50 [0.25, 0.75]"
    assert estimate_text(Estimate(0.5)) == "0.50"
    assert estimate_text(None) == "\N{EN DASH}"
