"""Parses a judge's text into its verdict, although neither the judge nor the texts it quotes can be trusted.

Always true: a verdict is read only from a complete JSON object that has exactly the requested shape and ends the text.
The answer is `Unparsable` if another object of that shape disagrees, if other text looks like a piece of a verdict or
states another score, if an object repeats a key, if a thought is still open before the verdict, or if the judged texts
hold the same object: then nobody can tell whose words they are. Parsing takes time linear in the length of the texts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from rewardflow.errors import ServiceError, Unparsable
from rewardflow.observe.redact import hide_secrets, redact
from rewardflow.services.http.chat_answer import ChatAnswer, TokenChoice
from rewardflow.services.judges.fencing import neutralised
from rewardflow.services.judges.rubric import REASON, Criterion, number_of
from rewardflow.services.judges.stated_scores import COLON, stated_scores
from rewardflow.services.judges.thoughts import end_of_first_thought, is_thinking, outside_thoughts

T = TypeVar("T")

MAX_ANSWER_CHARS = 200_000
_MAX_EXCERPT_CHARS = 200
# Possessive (`*+`): two repetitions that can match the same blanks would try every way to divide them.
_END = re.compile(r"\s*+(?:`{3,}+|~{3,}+)?+\s*+")  # the only text allowed after a verdict
_FENCE_OPEN = re.compile(r"\s*+(?:(?:`{3,}+|~{3,}+)\w*+)?+\s*+")
_OBJECT_START = re.compile(r'\{\s*"')
_WINDOW_CHARS = 4096
_CHARS_PER_FAILURE = 100  # the fixed cost of a failed attempt at parsing
_SLACK_CHARS = 10_000  # what all failed attempts together may read, beyond ten times the text
_MIN_SCORE_MASS = 0.5  # with less probability on scores, the model was about to write something else


def read_verdict(
    answer: ChatAnswer,
    keys: Collection[str],
    read: Callable[[Mapping[str, Any]], T | None],
    untrusted: Iterable[str | None] = (),
) -> T:
    """Returns the verdict: what `read` returns for the object at the end of the judge's answer.

    `keys` are the keys of a verdict. `read` returns None for an object that is not exactly a verdict. Results are
    compared by `agrees_with` if they have it, otherwise by equality. `untrusted` are the texts shown to the judge.
    """
    if answer.finish_reason == "length":
        raise Unparsable(f"the judge's answer was cut at its limit of tokens; raise max_tokens: {excerpt(answer.text)}")
    if answer.finish_reason == "content_filter":
        raise ServiceError(f"a content filter stopped the judge's answer: {excerpt(answer.text)}", retryable=False)
    return find_verdict(answer.text, keys, read, untrusted, is_whole=answer.is_held_to_schema)


def find_verdict(
    text: str,
    keys: Collection[str],
    read: Callable[[Mapping[str, Any]], T | None],
    untrusted: Iterable[str | None] = (),
    *,
    is_whole: bool = False,
) -> T:
    """Reads the verdict from text alone. With `is_whole`, the text must be the object and nothing else."""
    if len(text) > MAX_ANSWER_CHARS:
        raise Unparsable(f"a judge's answer must be at most {MAX_ANSWER_CHARS} characters, got {len(text)}")
    said = text[end_of_first_thought(text) :]
    try:
        objects = list(_objects(said))
    except _Tangled:
        raise Unparsable(f"the judge's answer is too tangled to read: {excerpt(said)}") from None
    if any(isinstance(inner, _Ambiguous) for one in objects for inner in _with_inner(one.value)):
        raise Unparsable(f"a key must be given once in an object, and is given twice: {excerpt(said)}")
    found = [(one, verdict) for one in objects if (verdict := _read_object(read, one)) is not None]
    if not found:
        raise Unparsable(f"no verdict with exactly {', '.join(keys)} in the judge's answer: {excerpt(said)}")
    last, verdict = found[-1]
    if any(_differ(other, verdict) for _, other in found):
        raise Unparsable(f"the judge's answer holds verdicts that disagree: {excerpt(said)}")
    _check_surroundings(said, [one for one, _ in found], keys, is_whole)
    if any(_stands_in(last.value, shown, read) for shown in untrusted if shown is not None):
        raise Unparsable(f"the judge's verdict is a copy of one in what it judged: {excerpt(said)}")
    _check_stated_scores(_without(said[: last.start], objects), last.value)
    return verdict


def _read_object(read: Callable[[Mapping[str, Any]], T | None], found: _Found) -> T | None:
    return read(found.value) if isinstance(found.value, dict) else None


def _check_surroundings(said: str, found: Sequence[_Found], keys: Collection[str], is_whole: bool) -> None:
    """Refuses an answer if text outside its verdicts may be the judge's real decision."""
    outside = _without(said, found)
    if is_thinking(_without(said[: found[-1].start], found)):
        raise Unparsable(f"a thought must be closed before the verdict, and is open: {excerpt(said)}")
    if _key_pattern(tuple(keys)).search(outside):
        raise Unparsable(f"the judge's answer holds pieces of another verdict: {excerpt(said)}")
    if not _END.fullmatch(said, found[-1].end):
        raise Unparsable(f"the judge's answer must end with its verdict, and goes on: {excerpt(said)}")
    if is_whole and not (len(found) == 1 and _FENCE_OPEN.fullmatch(said, 0, found[0].start)):
        raise Unparsable(
            f"an answer held to a schema must be the verdict alone (set structured to prompt if the server ignores "
            f"schemas), got {excerpt(said)}"
        )


def _without(said: str, objects: Sequence[_Found]) -> str:
    """Returns the text outside of the objects. Ignores objects that start after it."""
    objects = [one for one in objects if one.start < len(said)]
    ends = [0, *(one.end for one in objects)]
    starts = [*(one.start for one in objects), len(said)]
    return "\n".join(said[end:start] for end, start in zip(ends, starts, strict=True))


def _check_stated_scores(prose: str, verdict: Mapping[str, Any]) -> None:
    """Refuses a verdict if the judge's prose before it states a score outside of the verdict's own scores.

    Several criteria may have a score for all of them, so any score between the lowest and the highest agrees. Scores
    inside a thought are not final.
    """
    scores = [score for key, value in verdict.items() if key != REASON and (score := number_of(value)) is not None]
    if not scores:
        return
    if not all(min(scores) <= stated <= max(scores) for stated in stated_scores(outside_thoughts(prose))):
        raise Unparsable(f"the judge's prose and its verdict state different scores: {excerpt(prose)}")


def excerpt(text: str) -> str:
    """Returns both ends of a text for an error message: without secrets, on one line, of bounded length."""
    text = hide_secrets(text)  # before it is cut, because half a secret cannot be recognised
    shown = " ".join(redact(text[:2000] if len(text) <= 4000 else f"{text[:2000]} ... {text[-2000:]}").split())
    if len(shown) <= _MAX_EXCERPT_CHARS:
        return repr(shown)
    half = _MAX_EXCERPT_CHARS // 2
    return repr(f"{shown[:half]} ... {shown[-half:]}")


# -- finding objects --


@dataclass(frozen=True, slots=True)
class _Found:
    value: Any
    start: int
    end: int


class _Tangled(ValueError):
    """Raised when parsing would take more than linear time. No honest answer looks like that."""


class _Ambiguous(tuple[Any, ...]):
    """The values of an object with a repeated key: not a verdict, but the objects inside it can still be searched."""


def _pairs(pairs: list[tuple[str, Any]]) -> Any:
    made = dict(pairs)
    return made if len(made) == len(pairs) else _Ambiguous(value for _, value in pairs)


def _whole_number(digits: str) -> float:
    return int(digits) if len(digits) < 20 else float(digits)  # Python refuses to parse thousands of digits as an int


_decode = json.JSONDecoder(object_pairs_hook=_pairs, parse_int=_whole_number).raw_decode


def _objects(text: str) -> Iterator[_Found]:
    """Yields the outermost JSON objects of a text from left to right; ignores code fences and prose around them.

    Counts the characters of failed attempts, and raises `_Tangled` if they are too many.
    """
    allowance = 10 * len(text) + _SLACK_CHARS
    base, window = 0, text
    place = _OBJECT_START.search(text)
    while place is not None:
        start = place.start()
        if start - base > _WINDOW_CHARS:  # because the parser's errors count lines from the start of its text
            base, window = start, text[start:]
        try:
            value, end = _decode(window, start - base)
        except json.JSONDecodeError as error:
            allowance -= _CHARS_PER_FAILURE + base + error.pos - start
            end = start + 1 - base
        except RecursionError:
            raise _Tangled from None
        else:
            yield _Found(value, start, base + end)
        if allowance < 0:
            raise _Tangled
        place = _OBJECT_START.search(text, base + end)


def _stands_in(verdict: Mapping[str, Any], text: str, read: Callable[[Mapping[str, Any]], T | None]) -> bool:
    """Whether a text, in the form the judge saw, holds an object with the same decision and the same reason."""
    if "{" not in text:
        return False
    decision, reason = read(verdict), _bare(verdict.get(REASON))
    shown = neutralised(text)
    try:
        for found in _objects(shown):
            for inner in _with_inner(found.value):
                if isinstance(inner, dict) and _bare(inner.get(REASON)) == reason:
                    other = read(inner)
                    if other is not None and not _differ(other, decision):
                        return True
    except _Tangled:  # refusing every verdict here would let the text's author avoid being judged
        return reason in _bare(shown)
    return False


def _with_inner(value: Any) -> Iterator[dict[str, Any] | _Ambiguous]:
    """Yields all objects inside a parsed value, including the value itself."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
            waiting.extend(one.values())
        elif isinstance(one, list | _Ambiguous):
            if isinstance(one, _Ambiguous):
                yield one
            waiting.extend(one)


def _bare(text: Any) -> str:
    """Returns the words of a text in one form. A reason that is not a text has none, however deeply it is nested."""
    return " ".join(text.split()).casefold() if isinstance(text, str) else ""


@lru_cache(maxsize=64)
def _key_pattern(keys: tuple[str, ...]) -> re.Pattern[str]:
    """Matches a piece of a verdict: a key in any quotes and a colon, or a bare or bold key before a colon or a number.

    A bare `reason:` does not match, because it is ordinary prose.
    """
    quote = "[\"'`\u2018-\u201f]"
    quoted = rf"{quote}\s{{0,9}}(?:{'|'.join(map(re.escape, keys))})\s{{0,9}}\\{{0,9}}{quote}\s{{0,9}}{COLON}"
    names = "|".join(re.escape(key) for key in keys if key != REASON)
    mark = "[\\s*_`\"'\u2018-\u201f]{0,9}"
    loose = rf"(?<![A-Za-z0-9])(?:{names}){mark}(?:{COLON}|(?:[|(\u2192\u2013\u2014-]|->|is|of|at|score)?{mark}\d)"
    return re.compile(f"{quoted}|{loose}" if names else quoted, re.IGNORECASE)


def _differ(one: Any, other: Any) -> bool:
    agrees: Callable[[Any], bool] | None = getattr(one, "agrees_with", None)
    return not (one == other if agrees is None else agrees(other))


# -- expected scores --


def expected_score(criterion: Criterion, score: float, tokens: Sequence[TokenChoice] | None) -> float | None:
    """Returns the mean of the scores that the judge might have written here, weighted by their probabilities.

    Returns None without log-probs, for a scale that is not of whole numbers, and for a number of several tokens.
    """
    if not tokens or not criterion.is_whole:
        return None
    written = "".join(choice.token for choice in tokens)
    places = list(re.finditer(rf'"{criterion.name}"\s*:\s*"?(-?\d+)(?![\d.])', written))
    if len(places) != 1 or int(places[0][1]) != score:
        return None
    choice, offset = _token_at(tokens, places[0].start(1))
    lead, rest = choice.token[:offset], choice.token[offset:]
    if not re.match(rf"{places[0][1]}(?!\d)", rest):  # the number goes on in the next token
        return None
    probabilities: dict[int, float] = {}
    for text, logprob in {choice.token: choice.logprob, **choice.top}.items():
        candidate = _candidate(text, lead)
        if candidate is not None and criterion.low <= candidate <= criterion.high and not math.isnan(logprob):
            probabilities[candidate] = probabilities.get(candidate, 0.0) + math.exp(min(logprob, 0.0))
    mass = sum(probabilities.values())
    if mass < _MIN_SCORE_MASS:
        return None
    return sum(value * probability for value, probability in probabilities.items()) / mass


def _token_at(tokens: Sequence[TokenChoice], position: int) -> tuple[TokenChoice, int]:
    """Returns the token that holds the character at this position of the text, and the offset inside the token."""
    for choice in tokens:
        if position < len(choice.token):
            return choice, position
        position -= len(choice.token)
    raise IndexError(position)


def _candidate(token: str, lead: str) -> int | None:
    """Returns the whole number that an alternative token would have written, after the same lead or after spaces."""
    found = re.fullmatch(r"\s*(-?\d{1,9})\D*", token.removeprefix(lead), re.ASCII)
    return int(found[1]) if found else None
