"""Reading numbers out of the JSON that a scoring server answers with.

Always true: a score is a finite number that the server sent, unscaled and unclipped; an answer of another shape is
`Unparsable`, with what was expected and what came.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any

from rewardflow.errors import Unparsable
from rewardflow.reward.code.current_call import report_usage
from rewardflow.reward.code.results import describe


def follow(answer: Any, path: str) -> Any:
    """What lies at a dotted path (`data.0.score`) of parsed JSON; the empty path is the answer itself."""
    found = answer
    for step in path.split(".") if path else ():
        try:
            found = found[int(step)] if isinstance(found, list) else found[step]
        except (KeyError, IndexError, ValueError, TypeError):
            raise Unparsable(f"the answer must have {path!r}; there is no {step!r} in {describe(found)}") from None
    return found


def read_score(value: Any) -> float:
    """A finite number; neither a boolean nor a text that looks like one."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # a whole number beyond a double
            if math.isfinite(value):
                return float(value)
    raise Unparsable(f"a score must be a finite number, got {describe(value)}")


def report_call(answer: Any, cost_usd: float | None) -> None:
    """Tell the agent what a call cost and used: token counts as vLLM (`usage`) and SGLang (`meta_info`) tell them."""
    report_usage(cost_usd=cost_usd, tokens=_tokens(answer))


def _tokens(answer: Any) -> int:
    first = answer[0] if isinstance(answer, list) and answer else answer
    for holder, key in (("usage", "total_tokens"), ("meta_info", "prompt_tokens")):
        told = first.get(holder) if isinstance(first, Mapping) else None
        tokens = told.get(key) if isinstance(told, Mapping) else None
        if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens > 0:
            return tokens
    return 0
