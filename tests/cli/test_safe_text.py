"""Text from elsewhere, made fit for a terminal."""

from __future__ import annotations

from rewardflow.cli.safe_text import printable, safe


def test_text_from_elsewhere_loses_its_secrets_and_its_control_codes() -> None:
    assert safe("line one\n\ttwo \x1b[31m") == "line one\n\ttwo \\x1b[31m"
    assert "abcdefghijklmnop" not in safe("Authorization: Bearer abcdefghijklmnop")


def test_printable_leaves_ordinary_text_of_any_language_alone() -> None:
    for text in ("", "plain", "né 日本\u3000語 🎉", "a\xa0b"):
        assert printable(text) == text
    assert printable("\ud800\x9b\x00") == r"\ud800\x9b\x00"
