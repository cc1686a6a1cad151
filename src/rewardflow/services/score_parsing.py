"""Reads scores from the JSON answer of a scoring server.

Always true: a score is a finite number that the server sent, unscaled and unclipped. An answer of another shape raises
`Unparsable`, which says what was expected and what came.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rewardflow.errors import Unparsable
from rewardflow.reward.calls.faults import is_free_of_charge
from rewardflow.reward.code.current_call import report_usage, request_of_unknown_cost
from rewardflow.reward.code.results import describe
from rewardflow.reward.limits.plausible_numbers import CALL_TOKENS


def follow(answer: Any, path: str) -> Any:
    """Returns the value at a dotted path (`data.0.score`) of parsed JSON; the empty path is the answer itself."""
    found = answer
    for step in path.split(".") if path else ():
        try:
            found = found[int(step)] if isinstance(found, list) else found[step]
        except (KeyError, IndexError, ValueError, TypeError):
            raise Unparsable(f"the answer must have {path!r}; there is no {step!r} in {describe(found)}") from None
    return found


def read_score(value: Any) -> float:
    """Returns a finite number. Refuses booleans, and text even if it looks like a number."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # an integer too large for a float
            if math.isfinite(value):
                return float(value)
    raise Unparsable(f"a score must be a finite number, got {describe(value)}")


@contextlib.contextmanager
def priced_request(cost_usd: float | None) -> Iterator[Callable[[Any], None]]:
    """Counts a request as one of unknown cost until its block passes the answer to the function that it gets.

    That function reports the cost and the tokens to the agent; vLLM counts tokens in `usage`, SGLang in `meta_info`.
    """
    with request_of_unknown_cost(is_free_of_charge) as cost_is_told:

        def report(answer: Any) -> None:
            report_usage(cost_usd=cost_usd, tokens=_tokens(answer))
            if cost_usd is not None:
                cost_is_told()

        yield report


def _tokens(answer: Any) -> int:
    first = answer[0] if isinstance(answer, list) and answer else answer
    for holder, key in (("usage", "total_tokens"), ("meta_info", "prompt_tokens")):
        counts = first.get(holder) if isinstance(first, Mapping) else None
        tokens = counts.get(key) if isinstance(counts, Mapping) else None
        if tokens is not None:
            return CALL_TOKENS.count(tokens, f"{holder}.{key}") or 0
    return 0
