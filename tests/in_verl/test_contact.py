"""What the adapter uses of verl's inside is as it was tested. Reads verl's files, and imports nothing of verl."""

from __future__ import annotations

import ast
from pathlib import Path

import rewardflow.adapters.verl
from rewardflow.adapters.verl.contact import FINGERPRINTS, drift
from rewardflow.adapters.verl.launch.composition import verl_package

ADAPTER = Path(rewardflow.adapters.verl.__file__).parent


def test_every_piece_is_as_it_was_in_the_tested_release() -> None:
    changed = drift(verl_package())
    assert not changed, "read what verl changed, adapt, and give contact.py the fingerprints:\n" + "\n".join(changed)


def test_no_module_of_the_adapter_uses_a_private_name_of_verl_that_is_not_listed() -> None:
    files = {piece.partition(":")[0] for piece in FINGERPRINTS}
    verls = {name for file in files for name in defined((verl_package() / file).read_text()) if is_private(name)}
    listed = {piece.rpartition(".")[2] for piece in FINGERPRINTS}
    own = {name for file in ADAPTER.rglob("*.py") for name in used(file.read_text()) if is_private(name)}
    assert own & verls <= listed, sorted(own & verls - listed)
    assert {"_step_once", "_balance_batch"} <= own & verls  # the search finds what is there


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def defined(code: str) -> set[str]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in ast.walk(ast.parse(code)) if isinstance(node, kinds)}


def used(code: str) -> set[str]:
    """Returns the names of methods that are defined and of attributes that are read or called."""
    return defined(code) | {node.attr for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Attribute)}
