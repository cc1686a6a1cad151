"""What the ordinary tests compare with is what verl gives."""

from __future__ import annotations

import pytest
from algo import verl_cases as cases
from oracle import record, verl_calls


def flat(values: object) -> dict[str, float]:
    """Every number of nested lists and dicts by its path; text is left out."""
    if isinstance(values, dict | list):
        parts = values.items() if isinstance(values, dict) else enumerate(values)
        return {f"{key}.{path}": number for key, part in parts for path, number in flat(part).items()}
    return {"": float(values)} if isinstance(values, int | float) else {}


def test_the_recorded_values_are_those_of_verl() -> None:
    now, then = flat(record.values()), flat(cases.recorded())
    assert len(now) > 1000
    assert now == pytest.approx(then, rel=1e-5, abs=2e-6), "run: .venv-oracle/bin/python tests/oracle/record.py"


def test_every_estimator_and_loss_that_verl_has_is_compared() -> None:
    assert {settings.advantage for settings in cases.ADVANTAGES.values()} | {"gae"} == set(cases.ADVANTAGE_NAMES)
    assert {settings.loss for settings in cases.LOSSES.values()} == set(verl_calls.LOSS_NAMES)
