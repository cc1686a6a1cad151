"""Rules: scores that need no service, because the answer can be checked by looking at it.

Always true: a rule that scores says why in one line; one that lacks what it needs (no readable ground truth, no token
ids) raises, so that the verdict is failed and not zero. `decide` is the same with a third outcome, None: "I cannot
tell", which is where a `Cascade` asks a judge.

Rules whose `is_quick` is true take time linear in the response and may run on the event loop. The others may not: a
pattern can backtrack for ever and an expression can take hours to simplify. They run in threads under the agent's
timeout; use `workers="process"` where a stuck one must be killed and not only abandoned.
"""

from __future__ import annotations

import importlib
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar, Literal, Protocol, get_args

from rewardflow.errors import InvalidInput
from rewardflow.reward.services.endpoint import check_choice
from rewardflow.types import Reward, Rollout

_MAX_SHOWN_CHARS = 60


class Rule(Protocol):
    """What a `Cascade` needs of its first stage."""

    def decide(self, rollout: Rollout, /) -> Reward | None: ...


# -- GSM8K --

_SPACED = r"[0-9]{1,3} (?: [ \u00a0\u202f] [0-9]{3} ){1,6} (?! [ \u00a0\u202f]?[0-9] )"  # 1 000 000
_EXPONENT = r"(?: [eE] [-+]? [0-9]{1,3} (?![0-9A-Za-z]) )?"
_NUMBER = re.compile(
    rf"""(?P<sign> (?<![\w)]) - )?  [$€£]?  (?P<inner> (?<![\w)]) - )?   # in "5-3" the hyphen is no sign
        (?P<digits>
            [0-9]{{1,3}} (?: ,[0-9]{{2,3}} ){{0,6}} ,[0-9]{{3}} (?![0-9]) (?: \.[0-9]+ )?   # 1,234.5 and 1,00,000
          | (?<![0-9.,]) (?<! [0-9][ \u00a0\u202f] ) {_SPACED} (?: \.[0-9]+ )?
          | [0-9]+ (?: \.[0-9]+ )? {_EXPONENT}
          | (?<![0-9]) \.[0-9]+ {_EXPONENT}
        )""",
    re.VERBOSE | re.ASCII,
)
_MARKED = re.compile(
    rf"""\#\#\#\# [ \t*_`]*                                             # also in bold, as models like it
        (?P<number> [-+]? \\?[$€£]? [-+]? (?: {_SPACED} | [.,]?[0-9][0-9.,]*+ ) {_EXPONENT} )
        (?P<more> [ \t]? [/^:*\u00d7\u00b7] [ \t]? [0-9(] | [eE][-+]?[0-9] )?   # a formula, not a number
    """,
    re.VERBOSE | re.ASCII,
)
_MARK = "####"

GSM8KMethod = Literal["strict", "flexible"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GSM8K:
    """Compares the number that a response ends in with the true one, as numbers: 1,200 and $1200.00 are equal.

    `strict` wants the data set's own mark, `#### 42`, and takes the last; `flexible` takes the last number there is.
    The ground truth is a number or a whole GSM8K answer.
    """

    method: GSM8KMethod = "strict"
    right: float = 1.0
    wrong: float = 0.0
    unanswered: float = 0.0
    version: str = ""

    is_quick: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_choice("method", self.method, get_args(GSM8KMethod))

    def compute_score(self, rollout: Rollout) -> Reward:
        truth = read_number_answer(rollout.ground_truth)
        if truth is None:
            raise InvalidInput(
                f"gsm8k needs a number or a text with '#### number' as ground truth, got {_shown(rollout.ground_truth)}"
            )
        return self._compare(rollout.response, truth) or Reward(
            value=self.unanswered, explanation=f"no answer found ({self.method})"
        )

    def decide(self, rollout: Rollout) -> Reward | None:
        truth = read_number_answer(rollout.ground_truth)
        return None if truth is None else self._compare(rollout.response, truth)

    def _compare(self, response: str, truth: Decimal) -> Reward | None:
        answer = read_marked_number(response) if self.method == "strict" else read_last_number(response)
        if answer is None:
            return None
        is_right = answer == truth
        return Reward(
            value=self.right if is_right else self.wrong,
            explanation=f"answered {_shown(answer)}, {'as' if is_right else 'but'} the truth is {_shown(truth)}",
        )


def read_marked_number(text: str) -> Decimal | None:
    """The number after the last `####` that has one; None if more than a number stands there, as in `#### 1/2`."""
    last = _last_match(_MARKED, _plain_minus(text))
    return None if last is None or last["more"] else _decimal(last["number"])


def read_last_number(text: str) -> Decimal | None:
    """The last number of a text: commas that group digits, a sign, a currency before and a percent sign after it."""
    last = _last_match(_NUMBER, _plain_minus(text))
    if last is None:
        return None
    return _decimal(("-" if last["sign"] or last["inner"] else "") + last["digits"])


def read_number_answer(ground_truth: Any) -> Decimal | None:
    """A ground truth that is a number, the text of one, or a GSM8K answer that ends in `#### number`."""
    if isinstance(ground_truth, bool) or not isinstance(ground_truth, int | float | Decimal | str):
        return None
    text = str(ground_truth)
    return read_marked_number(text) if _MARK in text else _decimal(_plain_minus(text))


def _decimal(text: str) -> Decimal | None:
    """None for what only looks like a number, such as 1.2.3, and for what is not finite."""
    bare = re.sub(r"[,$€£%\\\s]", "", text).rstrip(".")
    try:
        number = Decimal(bare)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _plain_minus(text: str) -> str:
    return text.replace("\N{MINUS SIGN}", "-")


# -- mathematics --


@dataclass(frozen=True, slots=True, kw_only=True)
class Math:
    r"""Compares MATH-style answers (`\boxed{\frac{1}{2}}` and 0.5) with math-verify, symbolically.

    Needs `rewardflow[math]`. math-verify's own timeouts are signals, which only work in a main thread, so they are off
    and the agent's timeout holds. Only the last `tail_chars` of a response are read: the answer is there.
    """

    right: float = 1.0
    wrong: float = 0.0
    unanswered: float = 0.0
    tail_chars: int = 4000
    version: str = ""

    is_quick: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.tail_chars < 1:
            raise InvalidInput(f"tail_chars must be at least 1, got tail_chars={self.tail_chars}")

    def compute_score(self, rollout: Rollout) -> Reward:
        truth = self._parse_truth(rollout.ground_truth)
        if not truth:
            raise InvalidInput(f"math needs a ground truth it can read, got {_shown(rollout.ground_truth)}")
        return self._compare(rollout.response, truth) or Reward(
            value=self.unanswered, explanation="no mathematical answer found"
        )

    def decide(self, rollout: Rollout) -> Reward | None:
        truth = self._parse_truth(rollout.ground_truth)
        return self._compare(rollout.response, truth) if truth else None

    def _parse_truth(self, ground_truth: Any) -> list[Any]:
        """A bare answer is put into a box, or only its first number would be read."""
        if ground_truth is None or isinstance(ground_truth, bool):
            return []
        text = str(ground_truth).strip()
        is_marked = "\\boxed" in text or "$" in text
        return _parse_math(text if is_marked else f"\\boxed{{{text}}}") if text else []

    def _compare(self, response: str, truth: list[Any]) -> Reward | None:
        answer = _parse_math(response[-self.tail_chars :])
        if not answer:
            return None
        is_right = _math_verify().verify(truth, answer, timeout_seconds=None)
        # The texts as found, never the expressions: turning 9**9**9 into digits would not end.
        return Reward(
            value=self.right if is_right else self.wrong,
            explanation=f"answered {_as_found(answer)}, {'as' if is_right else 'but'} the truth is {_as_found(truth)}",
        )


def _parse_math(text: str) -> list[Any]:
    parsed: list[Any] = _math_verify().parse(text, parsing_timeout=None)
    return parsed


def _as_found(parsed: list[Any]) -> str:
    return next((_shown(one) for one in reversed(parsed) if isinstance(one, str)), "an expression")


def _math_verify() -> Any:
    try:
        module = importlib.import_module("math_verify")
        parts: list[Any] = [importlib.import_module(f"math_verify.{part}") for part in ("parser", "grader")]
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"the rule math needs math-verify: pip install 'rewardflow[math]' ({error.name} is missing)"
        ) from error
    for part in parts:
        part.TIMEOUT_WARNING_SHOWN = True  # it asks for a timeout of the caller's own, which the agent has
    return module


# -- patterns --


@dataclass(frozen=True, slots=True, kw_only=True)
class Regex:
    """Patterns that a response must and must not hold, and one whose match must be the ground truth.

    `answer` compares its group named `answer`, else its first group, else all of it, at its last match, without
    surrounding space. `ignore_case` is for the comparison; patterns say it themselves with `(?i)`.
    """

    must: str | Sequence[str] = ()
    must_not: str | Sequence[str] = ()
    answer: str | None = None
    ignore_case: bool = False
    right: float = 1.0
    wrong: float = 0.0
    unanswered: float = 0.0
    version: str = ""

    is_quick: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("must", "must_not"):
            given = getattr(self, name)
            object.__setattr__(self, name, (given,) if isinstance(given, str) else tuple(given))
        patterns = [*self.must, *self.must_not, *([] if self.answer is None else [self.answer])]
        if not patterns:
            raise InvalidInput("regex needs at least one of must, must_not and answer, got none")
        for pattern in patterns:
            _check_pattern(pattern)

    def compute_score(self, rollout: Rollout) -> Reward:
        if self.answer is not None and rollout.ground_truth is None:
            raise InvalidInput("regex with answer= needs a ground truth, got None")
        return self.decide(rollout) or Reward(
            value=self.unanswered, explanation=f"nothing matches {_shown(self.answer)}"
        )

    def decide(self, rollout: Rollout) -> Reward | None:
        response = rollout.response
        for pattern in self.must:
            if re.search(pattern, response) is None:
                return Reward(value=self.wrong, explanation=f"nothing matches {_shown(pattern)}, which must be there")
        for pattern in self.must_not:
            if (found := re.search(pattern, response)) is not None:
                return Reward(
                    value=self.wrong,
                    explanation=f"{_shown(found[0])} matches {_shown(pattern)}, which must not be there",
                )
        if self.answer is None:
            return Reward(value=self.right, explanation="everything that must be there is, and nothing that must not")
        return self._compare(self.answer, response, rollout.ground_truth)

    def _compare(self, pattern: str, response: str, ground_truth: Any) -> Reward | None:
        match = _last_match(re.compile(pattern), response)
        if match is None or ground_truth is None:
            return None
        group: str | int = "answer" if "answer" in match.re.groupindex else min(match.re.groups, 1)
        answer, truth = (match[group] or "").strip(), str(ground_truth).strip()
        is_right = answer.casefold() == truth.casefold() if self.ignore_case else answer == truth
        return Reward(
            value=self.right if is_right else self.wrong,
            explanation=f"answered {_shown(answer)}, {'as' if is_right else 'but'} the truth is {_shown(truth)}",
        )


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        raise InvalidInput(f"a pattern must be a regular expression, got {_shown(pattern)}: {error}") from error


# -- form --


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """Each tag opened and closed exactly once, in this order, none inside another, none empty.

    `opened_in_prompt` is for chat templates that end in the first opening tag, so that the response lacks it.
    """

    tags: str | Sequence[str] = ("think", "answer")
    text_outside: bool = False
    opened_in_prompt: bool = False
    right: float = 1.0
    wrong: float = 0.0
    version: str = ""

    is_quick: ClassVar[bool] = True

    def __post_init__(self) -> None:
        tags = (self.tags,) if isinstance(self.tags, str) else tuple(self.tags)
        object.__setattr__(self, "tags", tags)
        if not tags or len(set(tags)) != len(tags) or not all(re.fullmatch(r"[\w:.-]+", tag) for tag in tags):
            raise InvalidInput(f"tags must be one or more distinct names without brackets, got {list(tags)}")

    def compute_score(self, rollout: Rollout) -> Reward:
        text = f"<{self.tags[0]}>{rollout.response}" if self.opened_in_prompt else rollout.response
        problem = self._problem(text)
        return Reward(
            value=self.right if problem is None else self.wrong,
            explanation=problem or f"{', '.join(self.tags)}: each once, in order",
        )

    def decide(self, rollout: Rollout) -> Reward | None:
        return self.compute_score(rollout)

    def _problem(self, text: str) -> str | None:
        end = 0
        for tag in self.tags:
            opening, closing = f"<{tag}>", f"</{tag}>"
            for mark in (opening, closing):
                if (count := text.count(mark)) != 1:
                    return f"{mark} must be there once, found {count} times"
            start, stop = text.index(opening), text.index(closing)
            if start < end:
                return f"{opening} must come after what is before it in {', '.join(self.tags)}"
            if stop < start:
                return f"{closing} comes before {opening}"
            if not self.text_outside and text[end:start].strip():
                return f"text before {opening}: {_shown(text[end:start].strip())}"
            if not text[start + len(opening) : stop].strip():
                return f"{opening} is empty"
            end = stop + len(closing)
        if not self.text_outside and text[end:].strip():
            return f"text after </{self.tags[-1]}>: {_shown(text[end:].strip())}"
        return None


# -- length --

LengthUnit = Literal["characters", "words", "tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """DAPO's soft punishment of overlong responses, to be added to another reward.

    0 up to `limit - buffer`, from there down in a straight line to `-penalty` at `limit`, and `-penalty` beyond.
    """

    limit: int
    buffer: int
    unit: LengthUnit = "characters"
    penalty: float = 1.0
    version: str = ""

    is_quick: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_choice("unit", self.unit, get_args(LengthUnit))
        if not 0 < self.buffer <= self.limit:
            raise InvalidInput(f"buffer must lie in (0, limit], got buffer={self.buffer}, limit={self.limit}")
        if not self.penalty >= 0:
            raise InvalidInput(f"penalty must not be negative, got penalty={self.penalty}")

    def compute_score(self, rollout: Rollout) -> Reward:
        length = self._measure(rollout)
        over = min(max(length - (self.limit - self.buffer), 0), self.buffer)
        return Reward(
            value=-self.penalty * over / self.buffer if over else 0.0,
            explanation=f"{length} {self.unit}; punished from {self.limit - self.buffer}, fully at {self.limit}",
            extras={"length": length},
        )

    def decide(self, rollout: Rollout) -> Reward | None:
        return self.compute_score(rollout)

    def _measure(self, rollout: Rollout) -> int:
        if self.unit == "characters":
            return len(rollout.response)
        if self.unit == "words":
            return len(rollout.response.split())
        if rollout.token_ids is None:
            raise InvalidInput("unit='tokens' needs token_ids on the rollout, got None; use words or characters")
        if rollout.response_mask is not None:  # tools' words between the policy's own do not count
            return sum(1 for flag in rollout.response_mask if flag)
        return len(rollout.token_ids)


RULES: Mapping[str, type[GSM8K | Math | Regex | Format | Length]] = {
    "gsm8k": GSM8K,
    "math": Math,
    "regex": Regex,
    "format": Format,
    "length": Length,
}
"""The rules by the names that a reward file uses."""


def _last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(iter(deque(pattern.finditer(text), maxlen=1)), None)


def _shown(value: object) -> str:
    """Short and on one line: it may be the policy's text."""
    text = str(value) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[: _MAX_SHOWN_CHARS - 3]}..."
