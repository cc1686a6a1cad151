"""The index: what it finds, what it keeps on disk, and how two searches become one list."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.services.retrieval.collection import Passage
from rewardflow.services.retrieval.passage_index import Hit, PassageIndex, merge

FACTS = {
    "otters": "Sea otters hold hands while they sleep so that they do not drift apart.",
    "moon": "The moon moves away from the earth by 38 millimetres a year.",
    "bread": "Sourdough bread rises with wild yeast and needs no baker's yeast.",
    "tide": "Tides follow the moon, and are highest when the moon is new or full.",
}


def index_of(facts: dict[str, str], cache_dir: Path | None = None, **settings: Any) -> PassageIndex:
    passages = [Passage(name, text) for name, text in facts.items()]
    return PassageIndex.build(passages, settings.get("stopwords", "en"), r"(?u)\b\w+\b", cache_dir)


def test_the_best_passages_come_first_and_those_without_a_shared_word_not_at_all() -> None:
    hits = index_of(FACTS).search("when is the moon full", 10)
    assert [hit.passage.id for hit in hits] == ["tide", "moon"]
    assert hits[0].score > hits[1].score > 0


@pytest.mark.parametrize("query", ["", "the of and", "zebra", "?!", "\ud800"])
def test_a_query_without_a_known_word_finds_nothing(query: str) -> None:
    assert index_of(FACTS).search(query, 3) == []


def test_a_single_digit_counts_as_a_word() -> None:
    hits = index_of({"a": "the answer is 7", "b": "the answer is 8"}).search("8", 2)
    assert [hit.passage.id for hit in hits] == ["b"]


def test_a_kept_index_finds_the_same(tmp_path: Path) -> None:
    built, loaded = index_of(FACTS, tmp_path), index_of(FACTS, tmp_path)
    assert built.digest == loaded.digest
    assert built.search("moon tides", 4) == loaded.search("moon tides", 4)
    assert len(list(tmp_path.iterdir())) == 1


def test_another_content_or_setting_is_another_index(tmp_path: Path) -> None:
    digests = {
        index_of(FACTS, tmp_path).digest,
        index_of({**FACTS, "new": "something new"}, tmp_path).digest,
        index_of({**FACTS, "moon": "made of cheese"}, tmp_path).digest,
        index_of(FACTS, tmp_path, stopwords="de").digest,
    }
    assert len(digests) == 4
    assert len(list(tmp_path.iterdir())) == 4


def test_a_broken_cache_is_built_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    index_of(FACTS, tmp_path)
    (folder,) = tmp_path.iterdir()
    for file in folder.iterdir():
        file.write_bytes(b"garbage")
    assert [hit.passage.id for hit in index_of(FACTS, tmp_path).search("otters", 1)] == ["otters"]
    assert "is built again" in caplog.text
    caplog.clear()
    index_of(FACTS, tmp_path)
    assert caplog.text == ""


def test_a_collection_without_words_is_refused() -> None:
    with pytest.raises(InvalidInput, match="words"):
        index_of({"a": "the", "b": "!!"})


def test_a_missing_bm25s_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bm25s", None)  # how Python marks what cannot be imported
    with pytest.raises(InvalidInput, match=r"pip install .*\[retrieval\]"):
        index_of(FACTS)


# -- merging --


def test_a_passage_that_both_find_comes_first_and_neither_side_drowns_the_other() -> None:
    a, b, c, d = (Passage(name, name) for name in "abcd")
    found = merge([Hit(a, 9.0), Hit(b, 1.0)], [Hit(c, 900.0), Hit(d, 800.0), Hit(b, 700.0)], 3)
    assert [one.passage.id for one in found] == ["b", "a", "c"]
    assert (found[0].question_score, found[0].answer_score) == (1.0, 700.0)
    assert (found[1].question_score, found[1].answer_score) == (9.0, None)
