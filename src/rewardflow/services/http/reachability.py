"""Checks before a run whether a service answers, with one free request to each address.

Always true: a problem found here is only logged, and stops no run. Some cases look like mistakes and are not: a server
that is still starting, a run whose verdicts are all in the journal, a key that may judge but not list models. Missing
parts of this machine (a key's variable, a file) are errors, and are checked elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from rewardflow.errors import CallError, ServiceError
from rewardflow.observe.redact import redact
from rewardflow.services.http.http_client import HttpClient

logger = logging.getLogger(__name__)

PATIENCE_S = 5.0
_REFUSED = frozenset({401, 403})
_MAX_MODELS_SHOWN = 5


async def check_reachability(
    http: HttpClient, addresses: Mapping[str, str], headers: Mapping[str, str], *, model: str | None = None
) -> list[str]:
    """Returns and logs the problems of a service, one line each. `addresses` maps each address to the URL to get.

    With `model`, the URLs must list the served models, as `/v1/models` does.
    """
    asked = list(addresses.items())
    async with asyncio.TaskGroup() as tasks:
        answers = [tasks.create_task(_ask(http, address, url, headers, model)) for address, url in asked]
    problems = [problem for problem in (answer.result() for answer in answers) if problem is not None]
    for problem in problems:
        logger.warning("%s", problem)
    return problems


async def _ask(http: HttpClient, address: str, url: str, headers: Mapping[str, str], model: str | None) -> str | None:
    place = redact(address.partition("?")[0])
    try:
        async with asyncio.timeout(PATIENCE_S):
            answer = await http.get_json(url, headers=headers)
    except TimeoutError:
        return f"{place} did not answer within {PATIENCE_S:g} s; calls to it wait until it does"
    except CallError as error:
        return _problem(place, error)
    served = _models(answer)
    if model is None or not served or model in served:
        return None
    shown = ", ".join(served[:_MAX_MODELS_SHOWN]) + (", ..." if len(served) > _MAX_MODELS_SHOWN else "")
    return f"{place} does not list the model {model}; it lists {redact(shown)}"


def _problem(place: str, error: CallError) -> str | None:
    """Returns None for most error statuses: a server without a list of models may still judge."""
    status = getattr(error, "status", None)
    if status in _REFUSED:
        return f"{place} refused the key (or its absence) with {status} when it was asked what it serves"
    if isinstance(error, ServiceError) and status is None:
        return f"the service does not answer yet: {error}"
    return None


def _models(answer: Any) -> Sequence[str]:
    """Returns the names in an answer of `/v1/models`; none if it has another shape."""
    rows = answer.get("data") if isinstance(answer, Mapping) else None
    names = [row.get("id") for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    return [name for name in names if isinstance(name, str)]
