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

from rewardflow.flow.schedule import Schedule

# The docstring of `Schedule` explains its fields in prose, so they have no comments; these are its texts by field.
_WITHOUT_COMMENTS: Mapping[type[Any], Mapping[str, str]] = {
    Schedule: {
        "groups_per_step": "prompts per step, each with a group of rollouts",
        "mini_batches": "optimizer steps per step; must divide `groups_per_step`",
        "stream": "how much must be scored before training on it starts",
        "max_staleness": "how many steps generation may run ahead of the weights",
        "order": "order of groups within a step: as they complete, or a fixed order, which makes runs repeatable",
        "epochs": "passes over a step's batch; more than one needs `stream: batch`",
        "placement": "whether generation and training share devices",
        "min_group": "a group with fewer verdicts is dropped",
        "drop_equal_scores": "drop groups whose scores are all equal",
        "refill": "reserve groups generated with each step, judged only when a group is dropped",
        "refill_rounds": "how often to generate more groups when the reserve is used up",
        "straggler_s": "seconds after which a step stops waiting for its last verdicts; null: never",
    }
}


def explanations(record: type[Any]) -> Mapping[str, str]:
    """Returns, for each field, the comment on its line or the comment lines directly above it."""
    if record in _WITHOUT_COMMENTS:
        return _WITHOUT_COMMENTS[record]
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
