"""What the adapter uses of TRL's inside is as it was tested. Reads TRL's files, and imports nothing of TRL."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import rewardflow.adapters.trl
from rewardflow.adapters.trl.contact_with_trl import FINGERPRINTS, changes, check_trl

ADAPTER = Path(rewardflow.adapters.trl.__file__).parent


def test_every_piece_is_as_it_was_in_the_tested_release() -> None:
    changed = changes()
    assert not changed, "read what changed, adapt and update contact_with_trl.py:\n" + "\n".join(changed)
    check_trl()


def test_no_module_of_the_adapter_uses_a_private_name_of_trl_that_is_not_listed() -> None:
    pieces = [(package, *piece.split(":")) for package, known in FINGERPRINTS.items() for piece in known]
    theirs = {
        name for package, file, _ in pieces for name in defined((root(package) / file).read_text()) if is_private(name)
    }
    listed = {name.rpartition(".")[2] for _, _, name in pieces}
    own = {name for file in ADAPTER.rglob("*.py") for name in used(file.read_text()) if is_private(name)}
    assert own & theirs <= listed, sorted(own & theirs - listed)
    assert {"_calculate_rewards", "_score_loop"} <= own & theirs  # the search finds what is there


def root(package: str) -> Path:
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.submodule_search_locations
    return Path(found.submodule_search_locations[0])


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def defined(code: str) -> set[str]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in ast.walk(ast.parse(code)) if isinstance(node, kinds)}


def used(code: str) -> set[str]:
    """Returns the names of methods that are defined and of attributes that are read or called."""
    return defined(code) | {node.attr for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Attribute)}
