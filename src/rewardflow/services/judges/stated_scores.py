"""Finds the scores that a judge states in prose, in its own name: "my score is 2", "2/10.", "this deserves a 2".

Always true: numbers inside quotation marks are somebody else's, and are not found. Other numbers are left alone,
because questions are about numbers and scores too: "the average score is 85", "a 1/10 chance", "3 out of 5 steps are
right", "step 2". The time is linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

COLON = "[:=\uff1a\uff1d]"

_MARKS = "[\\s*_`\"'\u2018-\u201f#>-]{0,9}"
_DASH = f"{_MARKS}[\u2013\u2014\u2192]?{_MARKS}"
_NOUN = r"(?:score|rating|grade|mark|verdict|judge?ment|assessment)"
_NUMBER = r"\d{1,9}+(?:\.\d{1,9}+)?+"  # possessive (`+`), so that "21 to 14" does not become a 2
_PART = r" ?(?:[/\uff0f]|out of) ?"
_BEFORE = (  # not any word: "my verdict on step 3", "I give full marks for part 1"
    rf"(?:[^\d.!?;\n{{}}]{{0,32}}"
    rf"(?:{COLON}|\b(?:is|be|of|at|an?|it|this|that|just|only|merely|answer|response|solution)))?{_MARKS}"
)
_SO = r"(?:(?:so|thus|hence|therefore|accordingly|consequently)[,:]? )?"
_STARTS = rf"(?:^|(?<=[.!?] )){_MARKS}{_SO}"
_LINK = r"(?: (?:is|was|of|at|(?:would|should|must) be))?"
_SUMMARY = (
    rf"(?:overall|final|total|in (?:summary|total|short|my (?:opinion|view))|conclusion){_MARKS}(?:,|{COLON}){_MARKS}"
)
# What must follow where the words alone do not tell: a number, or a share of a usual scale, that ends its sentence.
_IS_LAST = rf"(?={_NUMBER}[\s*_`)\]]{{0,9}}(?:[.!;,]|$))"
_IS_SHARE = (
    rf"(?={_NUMBER}{_PART}(?:5|10|100)(?!\d)(?: (?:points?|marks?|overall|at most|at best|in total))?"
    rf"[\s*_`)\]]{{0,9}}(?:[.!]|$))"
)
_OWN_SCORE = "|".join(
    (
        rf"\bmy (?:[a-z]{{1,20}} ){{0,2}}{_NOUN}\b{_BEFORE}",
        rf"{_STARTS}(?:(?:final|overall|total) )?{_NOUN}{_MARKS}{COLON}{_MARKS}",
        rf"{_STARTS}(?:(?:the|this|an?|its) )?(?:(?:final|overall|total) )?{_NOUN}{_LINK}{_DASH}{_IS_SHARE}",
        rf"{_STARTS}(?:(?:(?:the|its) )?(?:final|overall) )?{_NOUN}{_LINK}{_DASH}{_IS_LAST}",
        rf"{_STARTS}(?:{_SUMMARY})?{_IS_SHARE}",
        rf"\ban? {_MARKS}{_IS_SHARE}",
        rf"\bI(?:[\u2019']d|[\u2019']ll| would| will| must| can)? (?:[a-z]{{1,20}} ){{0,2}}"
        rf"(?:(?:give|rate|score|grade|assign|award|mark)\b{_BEFORE}"
        rf"(?={_NUMBER} ?(?:[/\uff0f]|out of|points?\b|[.!;,*]|$))"
        rf"|(?:say|call|put|judge|consider|settle|go)\b{_BEFORE}{_IS_SHARE})",
        rf"\b(?:deserves|merits|warrants)\b{_BEFORE}(?:(?={_NUMBER}{_PART})|{_IS_LAST})",
    )
)
_STATED = re.compile(
    rf"\"[^\"\n]*+\"|\u201c[^\u201c\u201d\n]*+\u201d|`[^`\n]*+`"
    rf"|(?:{_OWN_SCORE})(?<![\d.-])(?P<score>{_NUMBER})(?! ?(?:to|-|\u2013) ?\d)",
    re.IGNORECASE | re.MULTILINE,
)


def stated_scores(prose: str) -> Iterator[float]:
    """Yields the scores in the order of the text."""
    for stated in _STATED.finditer(prose):
        if stated["score"]:
            yield float(stated["score"])
