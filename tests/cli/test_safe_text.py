"""Text from elsewhere, made fit for a terminal."""

from __future__ import annotations

from rewardflow.cli.safe_text import printable, safe, shortened


def test_text_from_elsewhere_loses_its_secrets_and_its_control_codes() -> None:
    assert safe("line one\n\ttwo \x1b[31m") == "line one\n\ttwo \\x1b[31m"
    assert "abcdefghijklmnop" not in safe("Authorization: Bearer abcdefghijklmnop")


def test_printable_leaves_ordinary_text_of_any_language_alone() -> None:
    for text in ("", "plain", "né 日本\u3000語 🎉", "a\xa0b"):
        assert printable(text) == text
    assert printable("\ud800\x9b\x00") == r"\ud800\x9b\x00"


def test_a_long_error_keeps_its_place_which_is_its_end() -> None:
    place = "(reward.py, line 12, in compute_score)"
    error = f"ValueError: {'x' * 5_000} {place}"
    for room in (240, 400):
        shown = shortened(error, room)
        assert len(shown) == room
        assert shown.startswith("ValueError: xx")
        assert shown.endswith(place)
    assert shortened(error, 20) == "ValueError: xxxxxxx…"
    assert shortened("as it is", 8) == "as it is"
