"""The public names of the package: the same for type checkers, for the interpreter and in `__all__`."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import rewardflow

SOURCE = Path(rewardflow.__file__)


def names_for_type_checkers() -> dict[str, str]:
    """The module of each name in the block that only type checkers read."""
    (block,) = (node for node in ast.parse(SOURCE.read_text("utf-8")).body if isinstance(node, ast.If))
    imports = (node for node in block.body if isinstance(node, ast.ImportFrom))
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def test_every_public_name_is_what_type_checkers_take_it_for() -> None:
    modules = names_for_type_checkers()
    assert sorted(modules) == sorted(rewardflow.__all__)
    for name, module in modules.items():
        assert getattr(rewardflow, name) is getattr(import_module(module), name)


def test_dir_lists_every_public_name_before_its_first_use() -> None:
    code = "import rewardflow; assert set(rewardflow.__all__) <= set(dir(rewardflow)); from rewardflow import *; score"
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(SOURCE.parents[1])}, check=True)


def test_importing_the_package_loads_no_module_of_it() -> None:
    code = "import rewardflow, sys; assert not [name for name in sys.modules if name.startswith('rewardflow.')]"
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(SOURCE.parents[1])}, check=True)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        rewardflow.nonsense  # noqa: B018


def test_the_version_is_that_of_the_installed_package() -> None:
    assert rewardflow.__version__ == version("rewardflow")
    assert "__version__" in dir(rewardflow)
