"""The most that a forwarded request can cost is told only where the bytes of the request bound it.

`tests/serve/test_chat_proxy.py` tests how requests are forwarded.
"""

from __future__ import annotations

from typing import Any

import pytest

from rewardflow.services.forwarded_chat import ForwardedChat
from rewardflow.services.prices import Prices
from rewardflow.types import Rollout

IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}
TEXT = {"type": "text", "text": "Is this right?"}


def bound_usd(content: Any = "Is this right?", **more: Any) -> float | None:
    body = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": content}], **more}
    chat = ForwardedChat(base_urls=("http://127.0.0.1:1",), prices=Prices(0.0, 1e6))
    return chat.cost_bound_usd(Rollout(group_id="1", response=str(body), extra_info={"request": body}))


def test_a_request_of_text_costs_at_most_its_bytes_and_its_limit_of_tokens() -> None:
    assert bound_usd() == 100.0
    assert bound_usd([TEXT, TEXT]) == 100.0
    assert bound_usd(n=3) == 300.0
    assert bound_usd(n=None) == 100.0


@pytest.mark.parametrize(
    "more",
    [
        {"content": [TEXT, IMAGE]},
        {"content": IMAGE},
        {"content": [{"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}]},
        {"modalities": ["text", "audio"]},
        {"web_search_options": {"search_context_size": "high"}},
        *({"n": odd} for odd in ("5", 2.0, 0, -1)),
        {"max_tokens": None},
    ],
)
def test_a_request_whose_cost_its_bytes_do_not_bound_tells_no_bound(more: dict[str, Any]) -> None:
    assert bound_usd(**more) is None
