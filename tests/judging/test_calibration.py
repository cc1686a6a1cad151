"""Calibration compares scores with how good answers with such scores are."""

from __future__ import annotations

import pytest

from rewardflow.judging.agreement import ScorePair
from rewardflow.judging.calibration import calibration_of


def of(*both: tuple[float, float]) -> list[ScorePair]:
    return [ScorePair(score, label, str(i)) for i, (score, label) in enumerate(both)]


def test_a_judge_that_is_right_about_its_doubts_has_no_error() -> None:
    found = calibration_of(of((0.5, 1.0), (0.5, 0.0), (1.0, 1.0), (0.0, 0.0)))
    assert found is not None
    assert found.error == 0.0
    assert found.brier == pytest.approx(0.125)
    assert [(one.low, one.count) for one in found.bins] == [(0.0, 1), (0.5, 2), (0.9, 1)]


def test_a_judge_that_is_sure_and_wrong_has_an_error_of_one() -> None:
    found = calibration_of(of((1.0, 0.0), (0.0, 1.0)))
    assert found is not None
    assert (found.error, found.brier) == (1.0, 1.0)
    assert found.to_json()["bins"][0]["mean_label"] == 1.0


def test_scores_outside_0_to_1_have_no_calibration() -> None:
    assert calibration_of(of((1.5, 1.0))) is None
    assert calibration_of([]) is None
