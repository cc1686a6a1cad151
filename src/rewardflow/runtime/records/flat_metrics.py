"""Flattens a line of metrics.jsonl into numbers by name, for programs that draw curves.

Always true: a name is that of the line, with `/` between nested names; null and everything else that is no number is
left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_NOT_FIGURES = frozenset({"v", "step", "source"})


def scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """`{"busy_s": {"update": 2.0}, "mini_batches": [{"entropy": 0.5}]}`: `busy_s/update`, `mini_batch/0/entropy`.

    Leaves out the figures of a mini-batch by staleness.
    """
    return dict(_flat("", {name: value for name, value in line.items() if name not in _NOT_FIGURES}))


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if name == "mini_batches":
            for update in value:
                yield from _flat(prefix + _place(update), _of_update(update))
        elif isinstance(value, Mapping):
            yield from _flat(f"{prefix}{name}/", value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield prefix + name, float(value)


def _place(update: Mapping[str, Any]) -> str:
    epoch = f"epoch/{update['epoch']}/" if update["epoch"] else ""
    return f"{epoch}mini_batch/{update['mini_batch']}/"


def _of_update(update: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in update.items() if name not in ("mini_batch", "epoch", "by_staleness")}
