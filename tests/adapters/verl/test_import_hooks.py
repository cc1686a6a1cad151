"""Actions that run right after a module has been imported."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from rewardflow.adapters.verl.import_hooks import after_import


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "waited_for.py").write_text("STATE = ['own code']\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "waited_for", raising=False)
    return "waited_for"


def test_it_runs_after_the_modules_own_code_and_once(module: str) -> None:
    seen: list[object] = []
    after_import(module, lambda: seen.append(list(sys.modules[module].STATE)))
    assert seen == []
    assert module not in sys.modules
    loaded = importlib.import_module(module)
    importlib.import_module(module)
    assert seen == [["own code"]]
    assert loaded.__spec__ is not None
    assert loaded.__loader__ is loaded.__spec__.loader


def test_it_runs_at_once_where_the_module_is_there(module: str) -> None:
    importlib.import_module(module)
    seen: list[str] = []
    after_import(module, lambda: seen.append("now"))
    assert seen == ["now"]


def test_an_error_in_it_is_the_imports_error(module: str) -> None:
    def fail() -> None:
        raise RuntimeError("cannot register")

    after_import(module, fail)
    with pytest.raises(RuntimeError, match="cannot register"):
        importlib.import_module(module)


def test_two_may_wait_for_one_module(module: str) -> None:
    seen: list[int] = []
    after_import(module, lambda: seen.append(1))
    after_import(module, lambda: seen.append(2))
    importlib.import_module(module)
    assert sorted(seen) == [1, 2]
