"""Which releases of TRL the adapter accepts; tests/on_trl compares it with the installed one."""

from __future__ import annotations

import importlib.util

import pytest

from rewardflow.adapters import trl as adapter
from rewardflow.adapters.trl.contact_with_trl import TESTED, check_release
from rewardflow.errors import InvalidInput


def test_a_release_in_which_nothing_changed_that_is_used_is_accepted() -> None:
    check_release("9.9", [])


def test_another_release_is_refused_with_what_changed_and_what_to_do() -> None:
    with pytest.raises(InvalidInput, match=rf"{TESTED}, got TRL 9\.9, where trl/a\.py:A\.b is gone and 1 more"):
        check_release("9.9", ["trl/a.py:A.b is gone", "trl/a.py:A.c changed"])


@pytest.mark.skipif(importlib.util.find_spec("trl") is not None, reason="TRL is installed here")
def test_without_trl_the_import_says_what_to_install() -> None:
    with pytest.raises(InvalidInput, match="pip install trl=="):
        _ = adapter.GRPOTrainer


def test_a_name_that_does_not_exist_is_an_ordinary_error() -> None:
    with pytest.raises(AttributeError, match="PPOTrainer"):
        _ = adapter.PPOTrainer
