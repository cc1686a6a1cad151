"""Collections: what is read from files and folders, and when two of them are the same."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rewardflow.errors import InvalidInput
from rewardflow.services.retrieval.collection import Collection, Passage


def test_jsonl_rows_without_a_name_are_named_by_their_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"body": "one"}\n\n{"body": "two", "id": 7}\n', "utf-8")
    assert list(Collection(path, "body").read()) == [Passage("1", "one"), Passage("7", "two")]


@pytest.mark.parametrize(("line", "problem"), [("{", "line 2"), ("[]", "row 2"), ('{"text": 5}', "row 2")])
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"text": "one"}}\n{line}\n', "utf-8")
    with pytest.raises(InvalidInput, match=problem):
        list(Collection(path).read())


def test_parquet_is_read_by_column(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"body": ["one", "two"], "id": ["a", None], "other": [1, 2]}), path)
    assert list(Collection(path, "body").read()) == [Passage("a", "one"), Passage("2", "two")]
    with pytest.raises(InvalidInput, match="body, id, other"):
        Collection(path, "text").read()


def test_a_folder_gives_its_text_files_by_name(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    for name, text in {"b.md": "two", "sub/a.txt": "one", "c.png": "no", ".git/d.txt": "no"}.items():
        (tmp_path / name).write_text(text, "utf-8")
    assert list(Collection(tmp_path).read()) == [Passage("b.md", "two"), Passage("sub/a.txt", "one")]


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x", "utf-8")
    with pytest.raises(InvalidInput, match=r"\.jsonl"):
        Collection(tmp_path / "a.csv").read()


def test_a_folder_that_is_moved_or_gets_other_files_keeps_its_digest_and_an_edited_one_does_not(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        (folder / "a.md").write_text("one", "utf-8")
        (folder / "b.md").write_text("two", "utf-8")
    (there / "picture.png").write_bytes(b"no text")
    (there / ".hidden.md").write_text("not read", "utf-8")
    same = Collection(here).digest()
    assert Collection(there).digest() == same
    (there / "b.md").write_text("two!", "utf-8")
    assert Collection(there).digest() != same
    (here / "b.md").rename(here / "c.md")
    assert Collection(here).digest() != same


def test_a_file_is_known_by_its_bytes(tmp_path: Path) -> None:
    one, other = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for path in (one, other):
        path.write_text('{"text": "one"}\n', "utf-8")
    assert Collection(one).digest() == Collection(other).digest()
    other.write_text('{"text": "two"}\n', "utf-8")
    assert Collection(one).digest() != Collection(other).digest()


def test_what_is_not_there_has_no_digest(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"exists, got .*none\.jsonl"):
        Collection(tmp_path / "none.jsonl").digest()
