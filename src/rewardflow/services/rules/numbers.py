"""Finds the last number of a text, in the forms that people and models write.

Always true: a number is finite and read as a whole, in time linear in the text. In `1/2` neither 1 nor 2 is the number.
A date, a time or a version is not a number, and neither are its parts. A plain number is read as verl reads it.
"""

from __future__ import annotations

import re
import unicodedata
from decimal import Context, Decimal, DecimalException, InvalidOperation
from typing import Any

from rewardflow.services.rules.rule import last

_SPACED = r"[0-9]{1,3} (?: [ \u00a0\u202f] [0-9]{3} ){1,6} (?! [ \u00a0\u202f]?[0-9] )"  # 1 000 000
_EXPONENT = r"(?: [eE] [-+]? [0-9]{1,3} (?![0-9A-Za-z]) )?"
_DIGITS = rf"""(?:
    [0-9]{{1,3}} (?: ,[0-9]{{2,3}} ){{0,6}} ,[0-9]{{3}} (?![0-9]) (?: \.[0-9]+ )?   # 1,234.5 and 1,00,000
  | (?<![0-9.,]) (?<! [0-9][ \u00a0\u202f] ) {_SPACED} (?: \.[0-9]+ )?
  | [0-9]+ (?: \.[0-9]+ )? {_EXPONENT}
  | (?<![0-9]) \.[0-9]+ {_EXPONENT}
)"""
_DAY = r"(?: 0?[1-9] | [12][0-9] | 3[01] )"  # or month: either may come first
_NO_NUMBER = rf"""
    [0-9]{{4}} - {_DAY} - {_DAY} (?![0-9])                              # 2024-05-17
  | {_DAY} - {_DAY} - [0-9]{{4}} (?![0-9])                              # 17-05-2024
  | [0-9]++ (?: [ ]?/[ ]? [0-9]++ ){{2,}}                               # 5/17/2024
  | [0-9]{{1,2}} (?: :[0-5][0-9] ){{1,2}} (?: \.[0-9]++ )? (?![0-9:])   # 3:30
  | [0-9]++ (?: \.[0-9]++ ){{2,}} \w*+                                  # 17.05.2024 and 3.11.2
  | (?<!\w) [vV] [0-9]++ (?: \.[0-9]++ )+ \w*+                          # v2.0
"""
_NUMBER = re.compile(
    rf"""(?= [-$€£.0-9vV] )                                              # quickly skips most characters
        (?P<sign> (?<![\w)]) - )?  [$€£]?  (?P<inner> (?<![\w)]) - )?   # in "5-3" it is no sign
        (?: (?P<other> {_NO_NUMBER} )
          | (?: (?P<whole> (?<![0-9.,]) [0-9]{{1,9}} ) [ ] (?= [0-9]{{1,3}}/[0-9] ) )?   # the first 1 of 1 1/2
            (?P<digits> {_DIGITS} )  (?: [ ]?/[ ]? (?P<below> {_DIGITS} ) )?
        )""",
    re.VERBOSE | re.ASCII,
)
_MARK = "####"
_MARKED = re.compile(
    rf"""{re.escape(_MARK)} [ \t*_`]*                                   # also in bold, which models use
        (?P<number> [-+]? \\?[$€£]? [-+]? (?: {_SPACED} | [.,]?[0-9][0-9.,]*+ ) {_EXPONENT} )
        (?P<more> [ \t]? [/^:*\u00d7\u00b7] [ \t]? [0-9(] | [eE][-+]?[0-9] | [ ][0-9]++/[0-9] )?   # not only a number
    """,
    re.VERBOSE | re.ASCII,
)

_FRACTION_SIGNS = "".join(map(chr, (*range(0xBC, 0xBF), *range(0x2150, 0x215F))))  # such as ½
_GLUED_FRACTION = re.compile(rf"(?<=[0-9])(?=[{_FRACTION_SIGNS}]|\\[dt]?frac\{{)")
_LATEX_FRACTION = re.compile(r"\\[dt]?frac\{([0-9.,]++)\}\{([0-9.,]++)\}")
_PLAIN_SIGNS = str.maketrans(
    {sign: unicodedata.normalize("NFKC", sign).replace("\N{FRACTION SLASH}", "/") for sign in _FRACTION_SIGNS}
    | {"\N{FRACTION SLASH}": "/", "\N{MINUS SIGN}": "-"}
)


def read_marked_number(text: str) -> Decimal | None:
    """Returns the number after the last `####` that has one; None if more than a number follows, as in `#### 1/2`."""
    marked = last(_MARKED.finditer(_plain(text)))
    return None if marked is None or marked["more"] else _decimal(marked["number"])


def read_last_number(text: str) -> Decimal | None:
    """Returns the last number of a text, also with grouping commas, a sign, a currency before or a percent sign after.

    Returns the value of a fraction or a mixed number; skips dates, times and versions.
    """
    number = last(match for match in _NUMBER.finditer(_plain(text)) if match["other"] is None)
    return None if number is None else _value(number)


def read_number_answer(ground_truth: Any) -> Decimal | None:
    """Reads a ground truth: a number, the text of one, or a GSM8K answer that ends in `#### number`."""
    if isinstance(ground_truth, bool) or not isinstance(ground_truth, int | float | Decimal | str):
        return None
    text = str(ground_truth)
    if _MARK in text:
        return read_marked_number(text)
    plain = _plain(text).strip()
    fraction = _NUMBER.fullmatch(plain) if "/" in plain else None
    return _decimal(plain) if fraction is None or fraction["other"] else _value(fraction)


def _value(match: re.Match[str]) -> Decimal | None:
    number = _decimal(match["digits"])
    if match["below"] is not None:
        number = _quotient(number, _decimal(match["below"]), _decimal(match["whole"] or "0"))
    return number.copy_negate() if number is not None and (match["sign"] or match["inner"]) else number


def _quotient(above: Decimal | None, below: Decimal | None, whole: Decimal | None) -> Decimal | None:
    """Divides to 28 digits and rounds once, so that equal fractions give equal numbers."""
    if above is None or below is None or whole is None:
        return None
    context = Context(prec=28)
    try:
        # A whole number before an improper fraction, as in "from 10 20/4", is another number.
        return context.divide(context.fma(whole, below, above) if above < below else above, below)
    except DecimalException:  # division by zero
        return None


def _decimal(text: str) -> Decimal | None:
    """Returns None for text that only looks like a number, such as 1.2.3, and for infinite values."""
    bare = re.sub(r"[,$€£%\\\s]", "", text).rstrip(".")
    try:
        number = Decimal(bare)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _plain(text: str) -> str:
    r"""Writes every minus as `-` and every fraction as a/b: ½ and \frac{1}{2} become 1/2, and 1½ becomes 1 1/2."""
    spaced = _GLUED_FRACTION.sub(" ", text).translate(_PLAIN_SIGNS)
    return _LATEX_FRACTION.sub(r"\1/\2", spaced)
