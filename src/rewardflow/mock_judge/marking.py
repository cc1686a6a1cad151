"""Scores an answer by comparing it with the reference in the judge's prompt, or by what a bad judge falls for.

Always true: only the texts between the marker lines of `LLMJudge` count; a prompt without the answer, or without the
reference where that is compared, is refused, because the judge has nothing to look at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from rewardflow.errors import InvalidInput
from rewardflow.mock_judge.settings import MockJudgeSettings, Scores

LONGEST_CHARS = 1000

_MAGIC_WORD = re.compile(r"\bplease\b", re.IGNORECASE)
_FENCED = re.compile(r"^<<<(REFERENCE|ANSWER) (\w+)>>>\n(.*?)\n<<<END \1 \2>>>$", re.DOTALL | re.MULTILINE)


def share_of(settings: MockJudgeSettings, prompt: str) -> float | None:
    """Returns the answer's score as a share from 0 to 1; None where scores are made up."""
    if settings.scores == "made_up":
        return None
    fenced = {found[1]: found[3] for found in _FENCED.finditer(prompt)}
    is_bad = settings.scores in _BAD_JUDGES
    needed = ("ANSWER",) if is_bad else ("REFERENCE", "ANSWER")
    missing = [name for name in needed if name not in fenced]
    if missing:
        does = "looks at the answer alone" if is_bad else "compares the answer with the reference"
        raise InvalidInput(
            f"scores={settings.scores} {does}, so the last user message must show {'it' if is_bad else 'both'} "
            f"between marker lines, as LLMJudge does; got no {' and no '.join(missing)}"
        )
    answer = fenced["ANSWER"]
    if is_bad:
        return _BAD_JUDGES[settings.scores](answer)
    return (
        float(answer == fenced["REFERENCE"]) if settings.scores == "exact" else share_right(answer, fenced["REFERENCE"])
    )


def share_of_length(answer: str) -> float:
    """Returns the length of the answer as a share of the length from which on it cannot gain any more."""
    return min(len(answer) / LONGEST_CHARS, 1.0)


def has_magic_word(answer: str) -> float:
    return float(_MAGIC_WORD.search(answer) is not None)


def share_right(answer: str, reference: str) -> float:
    """Returns the share of equal characters, by position, of the longer text: an answer that is too long loses, too."""
    num_places = max(len(answer), len(reference))
    if num_places == 0:
        return 1.0
    return sum(given == wanted for given, wanted in zip(answer, reference, strict=False)) / num_places


_BAD_JUDGES: Mapping[Scores, Callable[[str], float]] = {"length": share_of_length, "word": has_magic_word}
