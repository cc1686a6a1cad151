"""The records of a translation: what replaces a word of the command line, and what the user is told about it.

Always true: a record never changes.
"""

from __future__ import annotations

from dataclasses import dataclass

NOT_SET = "not set"  # the note's `before` for a word that was added
NOTHING = "nothing"  # the note's `after` for a word that was left out
NO_EFFECT = "no effect"  # the note's `after` for a word that is kept and changes nothing


@dataclass(frozen=True, slots=True)
class TranslationNote:
    """Tells the user what became of a word."""

    before: str
    after: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.before} -> {self.after}" + (f" ({self.why})" if self.why else "")


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The words that replace one of the user's, and why."""

    words: tuple[str, ...]
    why: str = ""
