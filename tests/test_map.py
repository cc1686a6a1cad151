"""The map of the code is true: every file and function that ARCHITECTURE.md and docs/decisions.md name exists, the
picture of the rooms is that of today's imports, and the page stays short enough to read.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import rooms_picture

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "rewardflow"
MAP = ROOT / "ARCHITECTURE.md"
MAX_WORDS = 1800

NAMED_FILE = re.compile(r"`([\w/]*/(?:\w+\.py)?)`")
# A hop of a walk: `Assembly.accept` (`reward/groups/assembly.py`)
HOP = re.compile(r"`([\w.]+)` \(`([\w/]+\.py)`\)")


@cache
def defined_in(path: Path) -> frozenset[str]:
    """The functions and classes of a module, and the methods and nested functions as `Outer.inner`."""
    names: set[str] = set()

    def visit(node: ast.AST, outer: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(outer + child.name)
                visit(child, f"{outer}{child.name}.")
            else:
                visit(child, outer)

    visit(ast.parse(path.read_text("utf-8")), "")
    return frozenset(names)


def unknown_files(text: str) -> list[str]:
    """A folder inside a room may be named alone."""
    folders = {f"{path.name}/" for path in PACKAGE.rglob("*") if path.is_dir()}
    return [
        name
        for name in NAMED_FILE.findall(text)
        if name not in folders and not any((base / name).exists() for base in (PACKAGE, ROOT))
    ]


def unknown_functions(text: str) -> list[str]:
    return [
        f"{name} in {file}"
        for name, file in HOP.findall(text)
        if not (PACKAGE / file).is_file() or name not in defined_in(PACKAGE / file)
    ]


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/decisions.md"])
def test_every_file_that_the_page_names_exists(page: str) -> None:
    assert unknown_files((ROOT / page).read_text("utf-8")) == []


def test_every_function_of_the_walks_exists() -> None:
    text = MAP.read_text("utf-8")
    assert len(HOP.findall(text)) >= 20
    assert unknown_functions(text) == []


def test_every_room_is_on_the_map() -> None:
    rooms = {f"{path.parent.name}/" for path in PACKAGE.glob("*/__init__.py")}
    named = set(re.findall(r"`(\w+/)", MAP.read_text("utf-8")))
    assert rooms - named == set()


def test_the_map_is_short() -> None:
    assert len(MAP.read_text("utf-8").split()) <= MAX_WORDS


def test_the_picture_of_the_rooms_is_up_to_date() -> None:
    drawn = rooms_picture.PICTURE.read_text("utf-8")
    assert drawn == rooms_picture.draw(), "run `python tests/rooms_picture.py`"


def test_every_room_has_a_caption_in_the_picture() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert rooms == rooms_picture.CAPTIONS.keys() - {rooms_picture.FOUNDATION}


def test_a_file_and_a_function_that_do_not_exist_are_found() -> None:
    assert unknown_files("`reward/nowhere.py` and `reward/agent.py` and `nowhere/`") == [
        "reward/nowhere.py",
        "nowhere/",
    ]
    assert unknown_functions("`RewardAgent.fly` (`reward/agent.py`)") == ["RewardAgent.fly in reward/agent.py"]
    assert unknown_functions("`RewardAgent.statistics` (`reward/agent.py`)") == []
