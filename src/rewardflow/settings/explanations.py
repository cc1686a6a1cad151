"""Reads the explanation of each setting from the comment beside its field in the source.

Always true: the reference page shows users the same text that programmers read beside the field.
"""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize
from collections.abc import Mapping
from typing import Any


def explanations(record: type[Any]) -> Mapping[str, str]:
    """Returns, for each field, the comment on its line or the comment lines directly above it."""
    bases = (base for base in record.__bases__ if base is not object)
    found = {name: text for base in bases for name, text in explanations(base).items()}
    source = textwrap.dedent(inspect.getsource(record))
    comments, alone = _comments(source)
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            above = node.lineno - 1
            while above in alone:
                above -= 1
            lines = [*range(above + 1, node.lineno), node.end_lineno or node.lineno]
            found[node.target.id] = " ".join(comments[line] for line in lines if line in comments)
    return found


def _comments(source: str) -> tuple[dict[int, str], set[int]]:
    """Returns the text of every comment by line, and the lines that hold only a comment."""
    comments, alone = {}, set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line = token.start[0]
            comments[line] = token.string.lstrip("# ")
            if not token.line[: token.start[1]].strip():
                alone.add(line)
    return comments, alone
