"""Tells a judge's thoughts from what it says, by the tags that servers leave in the text.

Always true: a thought is closed only by the tag of its own name, once for each time that it was opened. What cannot be
told apart counts as a thought that is still open. The time is linear in the length of the text.
"""

from __future__ import annotations

import re
from collections import Counter

# Tags, also with blanks or an attribute; and the channels of the harmony format, of which only `final` is for readers.
_TAG = re.compile(
    r"<\s{0,9}(?P<closes>/)?\s{0,9}(?:seed:)?"
    r"(?P<name>think(?:ing)?|thoughts?|reasoning|reflection|analysis|scratchpad)"
    r"(?:\s{1,9}[\w:-]{1,40}\s{0,9}=[^<>]{0,80})?\s{0,9}>"
    r"|\[(?P<bracket_closes>/)?(?P<bracket_name>think(?:ing)?|thought|reasoning)\]"
    r"|\u25c1(?P<triangle_closes>/)?(?P<triangle_name>think)\u25b7"
    r"|<\|(?P<edge>begin|end)_of_(?P<edge_name>thought|thinking|reasoning)\|>"
    r"|<\|channel\|>\s{0,9}(?P<channel>[a-z]{1,20})(?:<\|message\|>)?|<\|(?P<message_end>end|return)\|>",
    re.IGNORECASE,
)
_CHANNEL = "channel"


def end_of_first_thought(text: str) -> int:
    """Returns where the thought with which a text begins is closed, with all thoughts inside it; 0 without one."""
    thoughts = _Thoughts()
    for number, tag in enumerate(_TAG.finditer(text)):
        if number == 0 and text[: tag.start()].strip():
            return 0
        thoughts.pass_tag(tag)
        if not thoughts.is_open:
            return tag.end()
    return 0


def is_thinking(text: str) -> bool:
    """Whether a thought is still open at the end of a text."""
    thoughts = _Thoughts()
    for tag in _TAG.finditer(text):
        thoughts.pass_tag(tag)
    return thoughts.is_open


def outside_thoughts(text: str) -> str:
    """Returns the text without its thoughts.

    All text before a tag that closes what was not open is a thought: some servers remove the tag that opens the first.
    """
    thoughts = _Thoughts()
    kept: list[str] = []
    start = 0
    for tag in _TAG.finditer(text):
        was_open = thoughts.is_open
        is_expected = thoughts.pass_tag(tag)
        if not is_expected and not was_open:
            kept.clear()
        elif not was_open:
            kept.append(text[start : tag.start()])
        start = tag.end()
    return "\n".join(kept if thoughts.is_open else [*kept, text[start:]])


class _Thoughts:
    """The thoughts that are open while a text is read from tag to tag."""

    def __init__(self) -> None:
        self._num_open: Counter[str] = Counter()  # by name, of which there are few

    @property
    def is_open(self) -> bool:
        return self._num_open.total() > 0

    def pass_tag(self, tag: re.Match[str]) -> bool:
        """Counts a tag. Returns False if it closes a thought that was not open."""
        if tag["channel"] or tag["message_end"]:
            self._num_open[_CHANNEL] = int(bool(tag["channel"]) and tag["channel"].lower() != "final")
            return True
        name = (tag["name"] or tag["bracket_name"] or tag["triangle_name"] or tag["edge_name"]).lower()
        edge = (tag["edge"] or "").lower()
        if not (tag["closes"] or tag["bracket_closes"] or tag["triangle_closes"] or edge == "end"):
            self._num_open[name] += 1
            return True
        was_open = self._num_open[name] > 0
        self._num_open[name] -= was_open
        return was_open
