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
        "groups_per_step": "prompts of one step, each with a group of rollouts",
        "mini_batches": "optimizer steps of a step; must divide `groups_per_step`",
        "stream": "how much must be scored before the device starts on it",
        "max_staleness": "how many steps generation may run ahead of the weights",
        "order": "of groups within a step: as they complete, or always the same, which can be repeated exactly",
        "epochs": "times that a step's batch is gone through; more than one needs `stream: batch`",
        "placement": "whether generation and training share the devices",
        "min_group": "verdicts that a group needs, or it is dropped",
        "drop_equal_scores": "drop groups whose scores are all equal",
        "refill": "reserve groups generated with each step, judged only when a group is dropped",
        "refill_rounds": "times that more are generated when the reserve does not suffice",
        "straggler_s": "seconds of waiting after which a step's last verdicts are given up; null: never",
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
