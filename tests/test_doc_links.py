"""Documents lead where they say: every link has a target, every page is found from the index, both languages agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
INDEX = ROOT / "docs" / "README.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *PAGES, *sorted((ROOT / "examples").glob("**/README.md"))]
PAIRS = (
    ("README.md", "README_zh.md"),
    ("docs/quick_start.md", "docs/quick_start_zh.md"),
    ("docs/verl.md", "docs/verl_zh.md"),
)

LINK = re.compile(r"\]\(([^()\s]+)\)")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
FOR_PEOPLE = re.compile(r'[ \t]*(#(?! \w+\.\w+$).*|""".*""")$', re.MULTILINE)
CODE = re.compile(r"`[^`\n]+`")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", BLOCK.sub("", text))


def links(path: Path) -> list[str]:
    """Those that stay in the repository."""
    found = LINK.findall(without_code(path.read_text("utf-8")))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def anchors(path: Path) -> set[str]:
    """As GitHub makes them of headings: lower case, no punctuation, hyphens for spaces."""
    headings = HEADING.findall(BLOCK.sub("", path.read_text("utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(path: Path) -> list[str]:
    complaints = []
    for link in links(path):
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists():
            complaints.append(f"{path.name} links to {link}, which does not exist")
        elif anchor and anchor not in anchors(target):
            complaints.append(f"{path.name} links to {link}, a heading that {target.name} does not have")
    return complaints


def code(path: Path) -> list[tuple[str, str]]:
    """Blocks without what is for people: comments, docstrings and the space before them."""
    blocks = BLOCK.findall(path.read_text("utf-8"))
    return [
        (kind, re.sub(r'[ \t]*(#(?! \w+\.\w+$).*|""".*""")$', "", text, flags=re.MULTILINE)) for kind, text in blocks
    ]


def facts(text: str) -> list[list[str]]:
    """Returns what no translation changes: indented commands, and the code and numbers of each row of a table."""
    lines = [line for line in text.splitlines() if line.startswith(("|", "    "))]
    return [[line] if line.startswith("    ") else facts_of_row(line) for line in lines]


def facts_of_row(line: str) -> list[str]:
    numbers = [number.rstrip(",") for number in NUMBER.findall(CODE.sub("", line))]
    return sorted([*CODE.findall(line), *numbers])


def figures_without_source(text: str, heading: str) -> list[str]:
    """Numbers of the section's table that benchmarks.md does not have."""
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    table = "\n".join(line for line in section.splitlines() if line.startswith("|"))
    known = set(NUMBER.findall((ROOT / "docs" / "benchmarks.md").read_text("utf-8")))
    return [number for number in NUMBER.findall(table) if number not in known]


# -- the documents as they are --


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(path: Path) -> None:
    assert broken_links(path) == []


def test_every_page_is_in_the_index() -> None:
    listed = {(INDEX.parent / link.partition("#")[0]).resolve() for link in links(INDEX)}
    assert [path.name for path in PAGES if path not in listed and path != INDEX] == []


@pytest.mark.parametrize("page", ["README.md", "README_zh.md"])
def test_the_front_page_leads_to_the_index_and_the_quick_start(page: str) -> None:
    found = links(ROOT / page)
    assert "docs/README.md" in found
    assert any(link.startswith("docs/quick_start") for link in found)


@pytest.mark.parametrize(("english", "chinese"), PAIRS)
def test_both_languages_show_the_same_code_and_have_the_same_sections(english: str, chinese: str) -> None:
    assert code(ROOT / chinese) == code(ROOT / english)
    sections = [len(re.findall(r"^## ", (ROOT / page).read_text("utf-8"), re.MULTILINE)) for page in (english, chinese)]
    assert sections[0] == sections[1]


def test_both_pages_about_verl_have_the_same_commands_tables_and_figures() -> None:
    english, chinese = (facts((ROOT / "docs" / page).read_text("utf-8")) for page in ("verl.md", "verl_zh.md"))
    assert chinese == english
    assert len(english) > 80


@pytest.mark.parametrize(("page", "heading"), [("README.md", "Measured"), ("README_zh.md", "测量结果")])
def test_figures_of_the_front_page_are_those_of_the_benchmarks(page: str, heading: str) -> None:
    assert figures_without_source((ROOT / page).read_text("utf-8"), heading) == []


# -- the checks can fail --


@pytest.mark.parametrize(
    ("text", "is_broken"),
    [
        ("[a](missing.md)", True),
        ("[a](other.md#no-such-thing)", True),
        ("# Here\n[a](#nowhere)", True),
        ("[a](other.md#a-heading-with-code)", False),
        ("# Here and there!\n[a](#here-and-there)", False),
        ("[a](https://example.org/missing.md) and `[b](missing.md)`", False),
        ("```\n[a](missing.md)\n```\n", False),
    ],
)
def test_a_broken_link_is_found(tmp_path: Path, text: str, is_broken: bool) -> None:
    (tmp_path / "other.md").write_text("## A heading, with `code`\n")
    (tmp_path / "page.md").write_text(text)
    assert bool(broken_links(tmp_path / "page.md")) is is_broken


def test_comments_may_differ_between_languages_and_code_may_not(tmp_path: Path) -> None:
    for name, text in {"a": "x = 1  # one\n", "b": "x = 1  # 一\n", "c": "x = 2  # one\n"}.items():
        (tmp_path / name).write_text(f"```python\n{text}```\n")
    assert code(tmp_path / "a") == code(tmp_path / "b") != code(tmp_path / "c")


def test_words_of_a_table_may_differ_between_languages_and_figures_may_not() -> None:
    english, chinese, wrong = "| `sync` | 9.8 s |\n", "| `sync` | 9.8 秒 |\n", "| `sync` | 8.9 秒 |\n"
    assert facts(english) == facts(chinese) != facts(wrong)
    assert facts("    make test\n") != facts("    make check\n")


def test_a_figure_that_nobody_measured_is_found() -> None:
    assert figures_without_source("## Measured\n\n| speed | 31,337.42 |\n\n## Other\n", "Measured") == ["31,337.42"]
