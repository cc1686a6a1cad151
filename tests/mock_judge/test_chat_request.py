"""Reading requests, and refusing what a judge cannot honour."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from rewardflow.errors import InvalidInput
from rewardflow.mock_judge.chat_request import ChatRequest, read_chat_request

SCHEMA = {"type": "object", "properties": {"score": {"type": "number"}}}


def read(*, takes_schema: bool = True, **fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "Judge this."}], **fields}
    return read_chat_request(orjson.dumps(body), takes_schema=takes_schema)


def test_the_last_user_message_is_the_prompt_and_the_systems_are_instructions() -> None:
    messages = [
        {"role": "system", "content": "You judge."},
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": None},
        {
            "role": "user",
            "content": [{"type": "text", "text": "la"}, {"type": "image_url"}, {"type": "text", "text": "st"}],
        },
    ]
    chat = read(messages=messages)
    assert (chat.instructions, chat.prompt, chat.prompt_tokens) == ("You judge.", "last", 5)


@pytest.mark.parametrize(
    "response_format",
    [
        {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": SCHEMA}},
        {"type": "json_object", "schema": SCHEMA},
    ],
)
def test_a_schema_is_found_in_either_form(response_format: dict[str, Any]) -> None:
    assert read(response_format=response_format).schema == SCHEMA


@pytest.mark.parametrize("response_format", [None, {"type": "text"}, {"type": "json_object"}])
def test_a_request_may_have_no_schema(response_format: Any) -> None:
    assert read(response_format=response_format).schema is None


def test_a_server_without_schemas_refuses_one() -> None:
    schema_format = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
    with pytest.raises(InvalidInput, match="response_format must be text or json_object on this server"):
        read(takes_schema=False, response_format=schema_format)


@pytest.mark.parametrize(
    ("fields", "number"),
    [({}, None), ({"logprobs": False}, None), ({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 5}, 5)],
)
def test_log_probs_are_wanted_or_not(fields: dict[str, Any], number: int | None) -> None:
    assert read(**fields).num_log_probs == number


def test_the_newer_name_of_the_token_limit_goes_first() -> None:
    assert read(max_tokens=7).max_tokens == 7
    assert read(max_tokens=7, max_completion_tokens=9).max_tokens == 9


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"messages": None}, "messages must be an array"),
        ({"messages": ["hello"]}, "messages must be an array of objects"),
        ({"messages": []}, "messages must hold a user message"),
        ({"messages": [{"content": "x"}]}, "must have a role"),
        ({"messages": [{"role": "user", "content": 7}]}, "content must be text"),
        ({"stream": True}, "stream and n must be left out"),
        ({"n": 3}, "stream and n must be left out"),
        ({"top_logprobs": 5}, "top_logprobs needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, r"top_logprobs must be a whole number in \[0, 20\], got 21"),
        ({"max_tokens": 0}, "max_tokens must be a whole number of at least 1, got 0"),
        ({"response_format": {"type": "json_schema"}}, "response_format must be"),
        ({"response_format": "json"}, "response_format must be"),
    ],
)
def test_what_cannot_be_honoured_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        read(**fields)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff"])
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput, match="the body must be"):
        read_chat_request(body)
