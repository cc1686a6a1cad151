"""Tells whether the pieces of another package that an adapter uses are still those that it was tested with.

Always true: a fingerprint depends on a piece's code, and not on its comments, docstrings and place in the file; the
other package is read, and never imported.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path


def fingerprint(package: Path, piece: str) -> str | None:
    """Returns the fingerprint of `file.py:Class.method` in a package; None if it is not there."""
    file, _, name = piece.partition(":")
    try:
        node: ast.AST | None = ast.parse((package / file).read_bytes())
    except (OSError, SyntaxError):
        return None
    for part in name.split("."):
        node = _defined_in(node, part) if node is not None else None
    if node is None:
        return None
    code = re.sub(
        "[\"']", "", ast.unparse(_without_docstring(node))
    )  # Python versions differ in the quotes they choose
    return hashlib.sha256(code.encode()).hexdigest()[:12]


def changed_pieces(package: Path, tested: Mapping[str, str]) -> list[str]:
    """Returns the pieces whose fingerprint is not the tested one, each with what happened to it."""
    found = {piece: fingerprint(package, piece) for piece in tested}
    return [
        f"{piece} {'is gone' if found[piece] is None else 'changed'}"
        for piece, expected in tested.items()
        if found[piece] != expected
    ]


def _defined_in(node: ast.AST, name: str) -> ast.AST | None:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return next(
        (child for child in ast.iter_child_nodes(node) if isinstance(child, kinds) and child.name == name), None
    )


def _without_docstring(node: ast.AST) -> ast.AST:
    body = getattr(node, "body", [])
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        node.body = body[1:]  # type: ignore[attr-defined]
    return node
