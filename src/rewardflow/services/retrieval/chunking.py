"""Cuts long texts into passages that fit a prompt: between paragraphs, otherwise between words.

Always true: no piece is longer than `max_chars`, no word is lost, and a piece begins with the end of the one before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rewardflow.services.retrieval.collection import Passage


def cut_into_passages(text: Passage, max_chars: int, overlap_chars: int) -> Iterator[Passage]:
    """Yields a short text unchanged, and a long one in pieces named `id#1`, `id#2`, ..."""
    if not text.text.strip():
        return
    if len(text.text) <= max_chars:
        yield text
        return
    for place, piece in enumerate(cut(text.text, max_chars, overlap_chars), 1):
        yield Passage(f"{text.id}#{place}", piece)


def cut(text: str, max_chars: int, overlap_chars: int) -> list[str]:
    """Cuts a text into pieces of whole paragraphs, each at most `max_chars` long.

    Each piece begins with up to `overlap_chars` of the one before. Cuts a paragraph that is too long between words, and
    a word that is too long anywhere.
    """
    parts = [
        part for paragraph in re.split(r"\n[^\S\n]*\n\s*", text) for part in _split_long(paragraph.strip(), max_chars)
    ]
    pieces: list[str] = []
    current: list[str] = []
    for part in parts:
        if current and _joined_chars([*current, part]) > max_chars:
            pieces.append("\n\n".join(current))
            current = _overlap(current, min(overlap_chars, max_chars - len(part) - 2))
        current.append(part)
    if current:
        pieces.append("\n\n".join(current))
    return pieces


def _split_long(paragraph: str, max_chars: int) -> Iterator[str]:
    while len(paragraph) > max_chars:
        end = max(paragraph.rfind(" ", 0, max_chars + 1), paragraph.rfind("\n", 0, max_chars + 1))
        end = end if end > 0 else max_chars
        yield paragraph[:end].rstrip()
        paragraph = paragraph[end:].lstrip()
    if paragraph:
        yield paragraph


def _overlap(parts: Sequence[str], room_chars: int) -> list[str]:
    """Returns the last paragraphs that fit into `room_chars`, otherwise the last words of the last paragraph."""
    kept: list[str] = []
    for part in reversed(parts):
        if _joined_chars([part, *kept]) > room_chars:
            break
        kept.insert(0, part)
    if kept or room_chars <= 0:
        return kept
    tail = parts[-1][-room_chars:].partition(" ")[2].strip()
    return [tail] if tail else []


def _joined_chars(parts: Sequence[str]) -> int:
    return sum(map(len, parts)) + 2 * (len(parts) - 1)
