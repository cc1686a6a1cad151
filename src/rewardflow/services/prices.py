"""Computes the cost of a call from its tokens and the prices in the settings or in `genai-prices`.

Always true: a price is never guessed. Without a known price no cost is reported, so that the agent uses its
`call_cost_usd`; the log says so once per model.
"""

from __future__ import annotations

import functools
import importlib
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rewardflow.errors import InvalidInput
from rewardflow.reward.settings import check_names

logger = logging.getLogger(__name__)

_MILLION = 1_000_000
_STEP_TOKENS = 1000  # prices are looked up for prompts of whole steps; the tiers of price lists begin at such lengths


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars per million tokens. If no price for cached input is set, it costs as much as other input."""

    input_usd_per_million: float
    output_usd_per_million: float
    cached_usd_per_million: float | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is None and name == "cached_usd_per_million":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise InvalidInput(f"{name} must be a number of at least 0, got {value!r}")

    @classmethod
    def of(cls, prices: Prices | Mapping[str, float] | None) -> Prices | None:
        """Accepts `Prices`, or a mapping as in a reward file."""
        if prices is None or isinstance(prices, Prices):
            return prices
        if not isinstance(prices, Mapping):
            raise InvalidInput(f"prices must be a mapping of {', '.join(cls.__slots__)}, got {prices!r}")
        check_names(prices, cls.__slots__)
        missing = [name for name in cls.__slots__[:2] if name not in prices]
        if missing:
            raise InvalidInput(f"prices must name input and output, {' and '.join(missing)} is missing")
        return cls(**prices)

    def cost_usd(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> float:
        cached_price = (
            self.input_usd_per_million if self.cached_usd_per_million is None else self.cached_usd_per_million
        )
        cached = min(cached_tokens, prompt_tokens)
        return (
            (prompt_tokens - cached) * self.input_usd_per_million
            + cached * cached_price
            + completion_tokens * self.output_usd_per_million
        ) / _MILLION

    def times(self, share: float) -> Prices:
        """Returns this share of each price."""
        cached = self.cached_usd_per_million
        return Prices(
            share * self.input_usd_per_million,
            share * self.output_usd_per_million,
            None if cached is None else share * cached,
        )

    def saved_usd(self, cached_tokens: int) -> float:
        """Returns what these tokens would have cost more if the service had not taken them from its cache."""
        if self.cached_usd_per_million is None:
            return 0.0
        return max(0.0, cached_tokens * (self.input_usd_per_million - self.cached_usd_per_million) / _MILLION)

    def bound_usd(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Returns the cost if no input is cached, or all of it, whichever is dearer."""
        dearest = max(self.input_usd_per_million, self.cached_usd_per_million or 0.0)
        return (prompt_tokens * dearest + completion_tokens * self.output_usd_per_million) / _MILLION


def known_prices(model: str, base_url: str, prompt_tokens: int = 0) -> Prices | None:
    """Returns the prices of a request with a prompt of this length, from `genai-prices`.

    Long prompts cost more per token at some providers. Returns None if the package is not installed, or does not know
    the provider at this address.
    """
    return listed_prices(model, base_url, max(1, math.ceil(prompt_tokens / _STEP_TOKENS)))


@functools.lru_cache(maxsize=1024)
def listed_prices(model: str, base_url: str, num_steps: int) -> Prices | None:
    """Looks up the prices of a prompt with this many thousand tokens."""
    try:
        genai_prices: Any = importlib.import_module("genai_prices")
    except ImportError:
        return None
    prompt_tokens = num_steps * _STEP_TOKENS

    def usd(**tokens: int) -> Any:
        usage = genai_prices.Usage(input_tokens=prompt_tokens, **tokens)
        return genai_prices.calc_price(usage, model_ref=model, provider_api_url=base_url).total_price  # a Decimal

    try:
        return Prices(
            float(usd() * _MILLION / prompt_tokens),
            float((usd(output_tokens=_STEP_TOKENS) - usd()) * _MILLION / _STEP_TOKENS),
            float(usd(cache_read_tokens=prompt_tokens) * _MILLION / prompt_tokens),
        )
    except LookupError:  # a local server, or a model that is newer than the table
        return None


@functools.lru_cache(maxsize=256)
def warn_of_no_price(model: str) -> None:
    """Warns once per model, so that nobody learns of the cost only from the bill."""
    logger.warning(
        "no price is known for %s, so the cost of its calls is not counted; set prices, install genai-prices if its "
        "provider is listed there, or set the agent's call_cost_usd",
        model,
    )
