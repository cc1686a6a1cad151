"""The page of a judge test shows figures and texts, and runs none of them."""

from __future__ import annotations

import rewardflow as rf
from rewardflow.judging.judge_test import JudgeTest, judge_test_of
from rewardflow.judging.labelled_answers import LabelledAnswer
from rewardflow.judging.probes import make_probes
from rewardflow.report.judges.judge_test_page import judge_test_page

EVIL = "<script>alert(1)</script>"


def figures_for(name: str, halted: str | None = None) -> JudgeTest:
    answers = [
        LabelledAnswer(
            rf.Rollout(group_id=f"g{i}", prompt=f"{EVIL} {i}", ground_truth="42", response=EVIL), i % 2, EVIL
        )
        for i in range(6)
    ]
    probes = make_probes(answers, num_probes=2, threshold=0.5, sees_groups=False)
    rewards = {probe.rollout.place: rf.Reward(value=0.75, explanation=f"said {EVIL}") for probe in probes}
    return judge_test_of(name, probes, rewards, threshold=0.5, halted=halted)


def test_the_page_compares_judges_and_shows_both_texts_of_a_disagreement() -> None:
    page = judge_test_page([figures_for("one"), figures_for("other", "no money")], source="labels.jsonl", threshold=0.5)
    assert EVIL not in page
    escaped = "&lt;script&gt;alert(1)&lt;/script&gt;"
    for text in (f"said {escaped}", "label 0.00, score 0.75", "Calibration", "Attacks", "plea", "no money"):
        assert text in page
    assert page.count("Worst disagreements of") == 2
    assert "6 labelled answers of labels.jsonl" in page
