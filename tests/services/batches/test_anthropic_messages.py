"""A chat completion's request becomes Anthropic's message, and the message becomes a chat completion."""

from __future__ import annotations

from typing import Any

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.services.batches.anthropic_messages import chat_completion_of, message_params

MESSAGES = [
    {"role": "system", "content": "Be strict."},
    {
        "role": "user",
        "content": [
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
            {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}},
            {"type": "text", "text": "Judge."},
        ],
    },
]


def test_system_images_and_sampling_are_translated() -> None:
    params = message_params({"model": "m", "messages": MESSAGES, "max_completion_tokens": 9, "stop": "END"})
    assert params["system"] == "Be strict."
    assert (params["model"], params["max_tokens"], params["stop_sequences"]) == ("m", 9, ["END"])
    (message,) = params["messages"]
    assert [part["type"] for part in message["content"]] == ["image", "image", "text"]
    assert message["content"][0]["source"] == {"type": "base64", "media_type": "image/png", "data": "QUJD"}
    assert message["content"][1]["source"] == {"type": "url", "url": "https://example.org/cat.png"}


def test_what_has_no_equivalent_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="no setting 'logprobs'"):
        message_params({"model": "m", "messages": MESSAGES, "max_tokens": 9, "logprobs": True})
    with pytest.raises(InvalidInput, match="needs max_tokens"):
        message_params({"model": "m", "messages": MESSAGES})


def test_a_message_keeps_its_text_reason_and_all_tokens_of_its_prompt() -> None:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 30, "cache_creation_input_tokens": 2, "output_tokens": 5}
    blocks = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "{}"}]
    message = {"model": "claude", "content": blocks, "stop_reason": "max_tokens", "usage": usage}
    completion = chat_completion_of(message)
    assert completion["choices"][0]["message"]["content"] == "{}"
    assert completion["choices"][0]["finish_reason"] == "length"
    assert completion["usage"] == {
        "prompt_tokens": 42,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 30},
    }


@pytest.mark.parametrize("usage", [None, {}, {"output_tokens": 5}, {"input_tokens": None, "output_tokens": 5}])
def test_a_prompt_whose_tokens_were_not_told_is_not_free(usage: Any) -> None:
    assert chat_completion_of({"content": [], "stop_reason": "end_turn", "usage": usage})["usage"] is None
