"""The notebooks in examples/ run from top to bottom.

Without a kernel: the code cells are executed in this process, in their order and in one namespace, with `await` allowed
as in a notebook. What a cell's last line gives is shown as a notebook would ask for it: `_repr_html_`, else `repr`.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
NOTEBOOKS = sorted(EXAMPLES.rglob("*.ipynb"))


def cells_of(path: Path) -> list[dict[str, Any]]:
    notebook = json.loads(path.read_text("utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    return list(notebook["cells"])


async def shown_by(source: str, namespace: dict[str, Any]) -> str:
    """Runs a cell and returns what its last line shows."""
    *before, last = ast.parse(source).body
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    is_expression = isinstance(last, ast.Expr)
    statements = before if is_expression else [*before, last]
    done = eval(compile(ast.Module(statements, []), "cell", "exec", flags), namespace)
    if inspect.iscoroutine(done):
        await done
    if not isinstance(last, ast.Expr):
        return ""
    value = eval(compile(ast.Expression(last.value), "cell", "eval", flags), namespace)
    if inspect.iscoroutine(value):
        value = await value
    html = getattr(value, "_repr_html_", None)
    return repr(value) if html is None else str(html())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_every_cell_of_a_notebook_runs_in_this_process_with_a_stand_in_for_display(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}

    async def run() -> list[str]:
        sources = ["".join(cell["source"]) for cell in cells_of(path) if cell["cell_type"] == "code"]
        return [await shown_by(source, namespace) for source in sources]

    shown = asyncio.run(run())
    assert any(one.startswith("<table>") for one in shown)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    cells = cells_of(path)
    assert len({cell["id"] for cell in cells}) == len(cells)
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def test_there_is_a_notebook() -> None:
    assert EXAMPLES / "own_reward" / "reward.ipynb" in NOTEBOOKS
