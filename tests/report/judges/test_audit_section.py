"""The page of a run shows its audit: both scores, alarms, and a judge that changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.report.judges.audit_section import audit_section, read_audit, read_probings

ALARM = {"window": 4, "training_before": 0.5, "training_after": 0.9, "audit_before": 0.6, "audit_after": 0.2}


def line(step: int, *, model: str = "m-1", **fields: Any) -> dict[str, Any]:
    own = {"v": 1, "step": step, "rollouts": 10, "training_sum": 5.0, "audit_sum": 2.5, "answered_by": {model: 10}}
    return {**own, **fields}


def written(folder: Path, *lines: dict[str, Any]) -> Path:
    (folder / "audit.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines), "utf-8")
    return folder


def test_both_scores_alarms_and_changed_models_are_shown(tmp_path: Path) -> None:
    lines = read_audit(written(tmp_path, line(1), line(0), line(1, alarm=ALARM), line(2, model="<m-2>")))
    assert [one.count("step") for one in lines] == [0, 1, 2]
    shown = str(audit_section(lines))
    assert "Alarm at step 1: over 4 steps the training judge&#x27;s score rose from 0.5 to 0.9" in shown
    assert "The training judge changed at step 2: its answers name &lt;m-2&gt;." in shown
    assert "Mean score of the audited rollouts" in shown


@pytest.mark.parametrize(
    ("is_alarm", "said"),
    [
        (True, "The training judge changed before step 50: 15 of 16 answers that could tell have moved away"),
        (False, "The training judge scored fixed answers as at the start, last at step 50"),
    ],
)
def test_the_last_look_at_fixed_answers_is_told(is_alarm: bool, said: str, tmp_path: Path) -> None:
    probing = {"step": 50, "moved": 15, "told": 16, "mean_before": 0.5, "mean_now": 0.75, "is_alarm": is_alarm}
    (tmp_path / "judge_probes.json").write_text(json.dumps({"probings": [probing]}), "utf-8")
    assert said in str(audit_section([], read_probings(tmp_path)))
    (tmp_path / "judge_probes.json").write_text("{", "utf-8")
    with pytest.raises(InvalidInput, match=r"judge_probes\.json must be JSON"):
        read_probings(tmp_path)


def test_a_run_without_an_audit_has_no_section(tmp_path: Path) -> None:
    assert audit_section(read_audit(tmp_path)) is None
    assert audit_section(read_audit(written(tmp_path, line(0, rollouts=0)))) is None


def test_a_line_of_the_wrong_shape_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"audit\.jsonl, line"):
        audit_section(read_audit(written(tmp_path, line(0, training_sum="much"))))
