"""Cutting: pieces that fit, overlap, and lose nothing."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from rewardflow.services.retrieval.chunking import cut, cut_into_passages
from rewardflow.services.retrieval.collection import Passage


def test_long_texts_are_cut_between_paragraphs_and_overlap() -> None:
    text = "\n\n".join(f"paragraph {i} " + "x" * 30 for i in range(6))
    pieces = cut(text, max_chars=100, overlap_chars=50)
    assert len(pieces) == 5
    for before, after in itertools.pairwise(pieces):
        assert after.startswith(before.rpartition("\n\n")[2])


def test_short_texts_stay_whole_and_long_ones_are_numbered() -> None:
    assert list(cut_into_passages(Passage("a", "short"), 10, 2)) == [Passage("a", "short")]
    assert [one.id for one in cut_into_passages(Passage("a", "one two three four"), 10, 0)] == ["a#1", "a#2"]
    assert list(cut_into_passages(Passage("a", " \n "), 10, 2)) == []


@given(st.text(alphabet="ab \n", max_size=300), st.integers(1, 40), st.integers(0, 39))
def test_no_piece_is_too_long_and_no_word_is_lost(text: str, max_chars: int, overlap_chars: int) -> None:
    overlap_chars = min(overlap_chars, max_chars - 1)
    pieces = cut(text, max_chars, overlap_chars)
    assert all(0 < len(piece) <= max_chars for piece in pieces)
    assert "".join("".join(cut(text, max_chars, 0)).split()) == "".join(text.split())
    short_words = {word for word in text.split() if len(word) <= max_chars}
    assert short_words <= {word for piece in pieces for word in piece.split()}
