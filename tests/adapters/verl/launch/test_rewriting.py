"""What the user is told about a word."""

from __future__ import annotations

from rewardflow.adapters.verl.launch.rewriting import NOTHING, TranslationNote


def test_a_note_reads_as_one_line_with_its_reason_if_it_has_one() -> None:
    assert str(TranslationNote("a=1", "b=1", "its name here")) == "a=1 -> b=1 (its name here)"
    assert str(TranslationNote("a=1", NOTHING)) == "a=1 -> nothing"
