"""The error about a missing package names the command that installs it."""

from __future__ import annotations

import json
import sys

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.extras import import_extra


def test_what_is_installed_is_imported() -> None:
    assert import_extra("json", "retrieval", "a judge") is json


def test_what_is_missing_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bm25s", None)  # how Python marks what cannot be imported
    with pytest.raises(InvalidInput, match=r"a judge needs bm25s: pip install 'rewardflow\[retrieval\]'"):
        import_extra("bm25s", "retrieval", "a judge")
