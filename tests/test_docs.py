"""What the documents say is true: their Python runs, their commands exist.

Python blocks of one document run in order, in one namespace and an empty directory; `await` works at the top level, as
in a notebook. A block that starts with a file's name in a comment (`# judge.py`) is also written there, so that later
blocks can name "judge.py:compute_score". What cannot run here is marked, with a reason, by the line before it:
`<!--- skip: next "needs an account" -->`. Shell blocks are not run; each `rewardflow` and `make` in them must parse.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import re
import shlex
import unittest
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from sybil import Document, Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, SkipParser

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "README_zh.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/**/*.md")
DOCUMENTS = sorted(path for page in PAGES for path in ROOT.glob(page))
SHELLS = ("bash", "console", "sh", "shell")

FILE_NAME = re.compile(r"# ([\w/-]+\.py)\n")
MAKE_TARGET = re.compile(r"^([a-z][a-z-]*):", re.MULTILINE)


# -- Python blocks --


def run_block(example: Example) -> None:
    source = str(example.parsed)
    if named := FILE_NAME.match(source):
        target = Path(named[1])
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(source, "utf-8")
    padded = "\n" * example.line + source  # so that a traceback shows the document's own lines
    code = compile(padded, example.path, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    result = eval(code, example.namespace)
    if inspect.iscoroutine(result):
        asyncio.run(result)


def run_document(path: Path) -> None:
    """Run its blocks in the current directory."""
    document = Sybil([CodeBlockParser("python", run_block), SkipParser()]).parse(path)
    document.namespace["__name__"] = "__main__"
    for example in document.examples():
        with contextlib.suppress(unittest.SkipTest):
            example.evaluate()


# -- shell blocks --


def shell_lines(document: Document) -> Iterator[str]:
    """The commands of every shell block; in a console block only what follows a prompt, the rest being output."""
    for example in document.examples():
        text = str(example.parsed).replace("\\\n", " ")
        has_prompts = re.search(r"^\$ ", text, re.MULTILINE) is not None
        for line in text.splitlines():
            if line.startswith("$ ") or not has_prompts:
                yield line.removeprefix("$ ")


def simple_commands(line: str) -> Iterator[list[str]]:
    """The words of each command of a line, without redirections, comments and leading assignments."""
    line = re.sub(r"(?<=\s)\d(?=[<>])", "", line)  # the 2 of `2>&1` is no argument
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.wordchars += "=:,@%+[]{}$"
    words: list[str] = []
    tokens = iter(lexer)
    for token in tokens:
        if set(token) <= set("();|&"):
            yield words
            words = []
        elif set(token) <= set("<>&"):
            next(tokens, None)
        elif words or not re.match(r"\w+=", token):
            words.append(token)
    yield words


def complaint_about(words: list[str]) -> str | None:
    """Why this is no command of ours that works; None for other people's commands."""
    program = words[0].rpartition("/")[2] if words else ""
    if program == "make":
        targets = set(MAKE_TARGET.findall((ROOT / "Makefile").read_text("utf-8")))
        unknown = [word for word in words[1:] if "=" not in word and not word.startswith("-") and word not in targets]
        return f"no target {', '.join(unknown)} in the Makefile" if unknown else None
    return complaint_of_parser(words[1:]) if program == "rewardflow" else None


def complaint_of_parser(arguments: list[str]) -> str | None:
    from rewardflow.cli.main import build_parser

    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            build_parser().parse_args(arguments)
        except SystemExit as stop:
            return said.getvalue().strip() if stop.code else None
    return None


def wrong_commands(path: Path) -> list[str]:
    complaints = []
    parsers = [CodeBlockParser(shell, lambda example: None) for shell in SHELLS]
    for line in shell_lines(Sybil(parsers).parse(path)):
        for words in simple_commands(line):
            if complaint := complaint_about(words):
                complaints.append(f"{path.name}: `{line.strip()}`: {complaint}")
    return complaints


# -- the documents as they are --


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_python_of_a_document_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_document(path)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_commands_of_a_document_exist(path: Path) -> None:
    complaints = wrong_commands(path)
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_yaml_of_a_document_can_be_read(path: Path) -> None:
    for block in re.findall(r"^```yaml\n(.*?)^```", path.read_text("utf-8"), re.DOTALL | re.MULTILINE):
        assert yaml.safe_load(block) is not None


# -- the checks can fail, and allow what they should --


@pytest.fixture
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A document to be written, next to which its blocks run."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "page.md"


def test_a_block_that_raises_is_found_at_its_line(document: Path) -> None:
    document.write_text("# Title\n\n```python\nx = 1\nassert x == 2\n```\n")
    with pytest.raises(AssertionError) as caught:
        run_document(document)
    assert (caught.traceback[-1].path, caught.traceback[-1].lineno + 1) == (document, 5)


def test_blocks_share_a_namespace_and_may_await(document: Path) -> None:
    document.write_text(
        "```python\nimport asyncio\nx = 1\n```\n\n"
        "```python\nasync with asyncio.timeout(None):\n    x += await asyncio.sleep(0, 1)\n```\n\n"
        "```python\nfrom pathlib import Path\nPath('out').write_text(str(x))\n```\n"
    )
    run_document(document)
    assert Path("out").read_text() == "2"


def test_a_block_named_after_a_file_is_written_there_too(document: Path) -> None:
    document.write_text(
        "```python\n# rewards/judge.py\ndef f():\n    return 1\n```\n\n```python\nassert f() == 1\n```\n"
    )
    run_document(document)
    assert Path("rewards/judge.py").read_text() == "# rewards/judge.py\ndef f():\n    return 1\n"


def test_a_block_with_a_reason_to_be_skipped_is_not_run_and_the_next_one_is(document: Path) -> None:
    document.write_text(
        '<!--- skip: next "needs an account" -->\n```python\n1 / 0\n```\n\n```python\nopen("out", "w").close()\n```\n'
    )
    run_document(document)
    assert Path("out").exists()


@pytest.mark.parametrize(
    "block",
    [
        "```bash\nmake nonsense\n```\n",
        "```sh\npip install rewardflow && make demo nonsense  # comment\n```\n",
        "```console\n$ PYTHON=python3.12 make nonsense\n```\n",
        "```bash\nrewardflow nonsense\n```\n",
        "```bash\nX=1 .venv/bin/rewardflow \\\n  nonsense | head\n```\n",
    ],
)
def test_a_command_that_does_not_exist_is_found(document: Path, block: str) -> None:
    document.write_text(block)
    assert len(wrong_commands(document)) == 1


@pytest.mark.parametrize(
    "block",
    [
        "```bash\nmake test ARGS='-k journal' PYTHON=python3.12\nmake -j demo; ls nonsense\n```\n",
        "```console\n$ make check\nmake nonsense is only output here\n```\n",
        "```bash\nrewardflow --help > out.txt 2>&1\n```\n",
        "```text\nmake nonsense\n```\n",
    ],
)
def test_a_command_that_exists_is_allowed(document: Path, block: str) -> None:
    document.write_text(block)
    assert wrong_commands(document) == []
