"""Prices come from the configuration or from genai-prices, and are never guessed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.services.http.chat import ChatClient
from rewardflow.services.prices import Prices, known_prices, listed_prices, warn_of_no_price

STAND_IN = """
from dataclasses import dataclass
from decimal import Decimal

@dataclass
class Usage:
    input_tokens: int = 0
    cache_read_tokens: int = 0
    output_tokens: int = 0

@dataclass
class Price:
    total_price: Decimal

def calc_price(usage, model_ref, *, provider_api_url):
    if model_ref != "gpt-x" or not provider_api_url.startswith("https://api.openai.com"):
        raise LookupError(model_ref)
    plain = usage.input_tokens - usage.cache_read_tokens
    total = Decimal(plain) * 2 + Decimal(usage.cache_read_tokens) / 2 + Decimal(usage.output_tokens) * 8
    return Price(total / 1000000 * (2 if usage.input_tokens > 200000 else 1))
"""


@pytest.fixture(autouse=True)
def no_memory() -> Iterator[None]:
    listed_prices.cache_clear()
    warn_of_no_price.cache_clear()
    yield
    listed_prices.cache_clear()
    warn_of_no_price.cache_clear()
    sys.modules.pop("genai_prices", None)


@pytest.fixture
def genai_prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "genai_prices.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(tmp_path)


def test_cost_is_tokens_times_prices_per_million() -> None:
    assert Prices(2.0, 8.0).cost_usd(1_000_000, 500_000) == 6.0
    assert Prices(2.0, 8.0).cost_usd(1_000_000, 0, cached_tokens=500_000) == 2.0
    assert Prices(2.0, 8.0).saved_usd(500_000) == 0.0
    assert Prices(2.0, 8.0, 0.5).saved_usd(500_000) == 0.75
    assert Prices(2.0, 8.0, 9.0).saved_usd(500_000) == 0.0, "a cache that is dearer saves nothing"
    assert Prices(2.0, 8.0, 0.5).cost_usd(1_000_000, 0, cached_tokens=500_000) == 1.25
    assert Prices(2.0, 8.0, 0.5).cost_usd(10, 0, cached_tokens=99) == pytest.approx(5e-6), "no more cached than sent"


def test_a_mapping_is_read_as_in_a_configuration_file() -> None:
    given = {"input_usd_per_million": 1, "output_usd_per_million": 2}
    assert Prices.of(given) == Prices(1, 2) == Prices.of(Prices(1, 2))
    assert Prices.of(None) is None


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"input_usd_per_million": 1}, "output_usd_per_million is missing"),
        ({"input_usd_per_milion": 1, "output_usd_per_million": 2}, "did you mean 'input_usd_per_million'"),
        ({"input_usd_per_million": -1, "output_usd_per_million": 2}, "at least 0"),
        ({"input_usd_per_million": "1", "output_usd_per_million": 2}, "at least 0"),
        (3.0, "must be a mapping"),
    ],
)
def test_prices_that_make_no_sense_are_refused(given: Any, rule: str) -> None:
    with pytest.raises(InvalidInput, match=rule):
        Prices.of(given)


@pytest.mark.usefixtures("genai_prices")
def test_genai_prices_is_asked_by_model_and_address() -> None:
    assert known_prices("gpt-x", "https://api.openai.com/v1") == Prices(2.0, 8.0, 0.5)


@pytest.mark.usefixtures("genai_prices")
@pytest.mark.parametrize(("prompt_tokens", "times"), [(0, 1), (199_001, 1), (200_000, 1), (200_001, 2), (10**7, 2)])
def test_a_prompt_that_reaches_a_dearer_tier_has_the_prices_of_that_tier(prompt_tokens: int, times: int) -> None:
    prices = known_prices("gpt-x", "https://api.openai.com/v1", prompt_tokens)
    assert prices == Prices(2.0, 8.0, 0.5).times(times)


@pytest.mark.usefixtures("genai_prices")
def test_the_bound_and_the_cost_of_a_long_prompt_are_those_of_its_tier() -> None:
    client = ChatClient(base_urls=["https://api.openai.com/v1"], model="gpt-x", sampling={"max_tokens": 1000})
    short_usd, long_usd = client.cost_bound_usd(100_000), client.cost_bound_usd(300_000)
    assert short_usd == pytest.approx((100_512 * 2 + 1000 * 8) / 1e6)
    assert long_usd == pytest.approx(2 * (300_512 * 2 + 1000 * 8) / 1e6)


@pytest.mark.usefixtures("genai_prices")
def test_a_model_on_a_host_of_ones_own_has_no_known_price_even_if_others_sell_it() -> None:
    assert known_prices("gpt-x", "http://127.0.0.1:8000") is None
    assert known_prices("unknown", "https://api.openai.com/v1") is None


def test_without_genai_prices_no_price_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)  # as if it were not installed
    assert known_prices("gpt-x", "https://api.openai.com/v1") is None


def test_a_model_without_a_price_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        warn_of_no_price("nobody-knows")
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 1
    assert "no price is known for nobody-knows" in told[0]
