"""Scores an answer by comparing it with the reference in the judge's prompt.

Always true: only the texts between the marker lines of `LLMJudge` are compared; a prompt without a reference or an
answer is refused, because the judge has nothing to compare.
"""

from __future__ import annotations

import re

from rewardflow.errors import InvalidInput
from rewardflow.mock_judge.settings import MockJudgeSettings

_FENCED = re.compile(r"^<<<(REFERENCE|ANSWER) (\w+)>>>\n(.*?)\n<<<END \1 \2>>>$", re.DOTALL | re.MULTILINE)


def share_of(settings: MockJudgeSettings, prompt: str) -> float | None:
    """Returns the answer's score as a share from 0 to 1; None where scores are made up."""
    if settings.scores == "made_up":
        return None
    fenced = {found[1]: found[3] for found in _FENCED.finditer(prompt)}
    missing = [name for name in ("REFERENCE", "ANSWER") if name not in fenced]
    if missing:
        raise InvalidInput(
            f"scores={settings.scores} compares the answer with the reference, so the last user message must show "
            f"both between marker lines, as LLMJudge does; got no {' and no '.join(missing)}"
        )
    answer, reference = fenced["ANSWER"], fenced["REFERENCE"]
    return float(answer == reference) if settings.scores == "exact" else share_right(answer, reference)


def share_right(answer: str, reference: str) -> float:
    """Returns the share of equal characters, by position, of the longer text: an answer that is too long loses, too."""
    num_places = max(len(answer), len(reference))
    if num_places == 0:
        return 1.0
    return sum(given == wanted for given, wanted in zip(answer, reference, strict=False)) / num_places
