"""Addresses, keys and headers of services: what is refused, and that no message holds what may be a key."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.reward.code.current_call import Call, enter_call
from rewardflow.services import JsonScorer, LLMJudge, RewardModel
from rewardflow.services.http.endpoint import (
    check_addresses,
    check_cost,
    check_headers,
    check_variable,
    endpoint_of_call,
    headers_to_send,
    read_addresses,
    warn_of_readable_key,
)

KEY = "sk-correct-horse-battery-9"


def refused(check: Any, *arguments: Any, **settings: Any) -> str:
    """All that a user would see of a refusal."""
    with pytest.raises(InvalidInput) as caught:
        check(*arguments, **settings)
    return "".join(traceback.format_exception_only(caught.value)) + str(caught.value.__cause__)


@pytest.mark.parametrize("address", ["h:8000", "ftp://h", "http://", "", 7, "http://[::1"])
def test_an_address_has_http_and_a_host(address: Any) -> None:
    assert "urls must be http or https addresses" in refused(check_addresses, "urls", ["http://h", address])


def test_addresses_differ_and_are_shown_without_passwords() -> None:
    assert "differ" in refused(check_addresses, "urls", ["http://h", "http://h"])
    assert "battery" not in refused(check_addresses, "urls", ["http://u:horse-battery@h"] * 2)


@pytest.mark.parametrize("given", [KEY, "", "1A", "A B", "$A", "A\n", 7])
def test_a_variable_has_the_name_of_one_and_what_has_not_is_not_shown(given: Any) -> None:
    told = refused(check_variable, "api_key_env", given)
    assert "api_key_env must be the name of an environment variable" in told
    assert KEY not in told


@pytest.mark.parametrize(
    ("service", "settings"),
    [
        (LLMJudge, {"model": "m", "base_urls": ["http://h"]}),
        (RewardModel, {"model": "m", "base_urls": "http://h"}),
        (JsonScorer, {"urls": "http://h"}),
    ],
)
def test_no_service_takes_or_shows_a_key_in_place_of_its_variable(service: Any, settings: dict[str, Any]) -> None:
    assert KEY not in refused(service, **settings, api_key_env=KEY)


@pytest.mark.parametrize(
    ("service", "settings"),
    [
        (LLMJudge, {"model": "m", "base_urls": ["http://h", "https://u:horse-battery@h"], "api_key_env": "K"}),
        (LLMJudge, {"model": "m", "base_urls": ["http://u:horse-battery@h"], "headers": {"authorization": "$K"}}),
        (RewardModel, {"model": "m", "base_urls": "http://u:horse-battery@h", "api_key_env": "K"}),
        (JsonScorer, {"urls": "http://u:horse-battery@h", "api_key_env": "K"}),
    ],
)
def test_a_password_in_an_address_and_a_key_are_not_sent_together(service: Any, settings: dict[str, Any]) -> None:
    told = refused(service, **settings)
    assert "must have no user and password when a key is sent" in told
    assert "battery" not in told


def test_a_password_in_an_address_and_a_key_in_another_header_are_fine() -> None:
    JsonScorer(urls="http://u:horse-battery@h", api_key_env="K", api_key_header="x-api-key")
    LLMJudge(model="m", base_urls=["http://u:horse-battery@h"], headers={"x-org": "$K"})


@pytest.mark.parametrize("name", ["Authorization", "api-key", "X-Anything", "Cookie"])
@pytest.mark.parametrize("value", [KEY, f"Bearer {KEY}", f"${KEY}", 7])
def test_a_header_that_may_hold_a_key_names_a_variable(name: str, value: Any) -> None:
    told = refused(check_headers, {name: value})
    assert name in told
    assert KEY not in told


def test_a_harmless_header_may_be_written_out_unless_it_looks_like_a_key() -> None:
    check_headers({"X-Title": "my run", "HTTP-Referer": "https://example.org", "api-key": "$AZURE_KEY"})
    assert KEY not in refused(check_headers, {"X-Title": KEY})


def test_headers_are_not_in_the_repr_of_a_judge() -> None:
    judge = LLMJudge(model="m", base_urls=["http://h"], headers={"X-Title": "my run", "api-key": "$AZURE_KEY"})
    assert "my run" not in repr(judge)
    assert "AZURE_KEY" not in repr(judge)


def test_keys_are_read_when_they_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE", f"{KEY}\n")
    assert headers_to_send({"api-key": "$ONE", "X-Title": "t"}, "ONE") == {
        "api-key": KEY,
        "X-Title": "t",
        "Authorization": f"Bearer {KEY}",
    }
    assert headers_to_send({}, "ONE", "X-Key") == {"X-Key": KEY}
    assert headers_to_send({}, None) == {}


def test_a_key_that_looks_like_a_variable_is_not_shown_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "hf_" + "abcdefghijklmnopqrstuvwxyzABCDEFGH"
    assert key not in refused(headers_to_send, {}, key)
    monkeypatch.delenv("JUDGE_KEY_X", raising=False)
    assert "JUDGE_KEY_X" in refused(headers_to_send, {}, "JUDGE_KEY_X")


def test_the_agents_choice_of_endpoint_counts_if_it_is_one_of_ours() -> None:
    ours = ("http://a", "http://b")
    assert endpoint_of_call(ours) == "http://a"
    try:
        for chosen, expected in (("http://b", "http://b"), ("http://c", "http://a"), (None, "http://a")):
            enter_call(Call(rollouts=(), endpoint=chosen))
            assert endpoint_of_call(ours) == expected
    finally:
        enter_call(None)


def test_one_address_or_several_are_read_without_a_slash_at_the_end() -> None:
    assert read_addresses("urls", "http://a/") == ("http://a",)
    assert read_addresses("urls", ["http://a", "http://b/v1/"]) == ("http://a", "http://b/v1")
    assert "urls must be one or more http or https addresses, got none" in refused(read_addresses, "urls", [])


@pytest.mark.parametrize("cost", [None, 0, 0.5])
def test_a_cost_is_a_number_from_0_on_or_none(cost: Any) -> None:
    check_cost("call_cost_usd", cost)


@pytest.mark.parametrize("cost", [-1, float("inf"), float("nan"), "1", True])
def test_another_cost_is_refused(cost: Any) -> None:
    assert "call_cost_usd must be a number of at least 0" in refused(check_cost, "call_cost_usd", cost)


def test_a_key_over_plain_http_to_another_machine_is_warned_of_once_for_each_host(
    caplog: pytest.LogCaptureFixture,
) -> None:
    key = {"Authorization": "Bearer garden-of-keys-1"}
    for url in ("http://judge-a.example:8000/v1", "http://judge-a.example/v2", "http://10.1.2.3/v1"):
        warn_of_readable_key(url, key)
    warn_of_readable_key("http://me:word@judge-b.example/v1", {})
    warn_of_readable_key("http://judge-e.example/v1?api-version=2&key=garden-of-keys-1", {})
    warned = [record.getMessage() for record in caplog.records]
    assert [message.split(" over ")[0] for message in warned] == [
        "a key goes to judge-a.example",
        "a key goes to 10.1.2.3",
        "a key goes to judge-b.example",
        "a key goes to judge-e.example",
    ]
    assert "garden-of-keys-1" not in caplog.text


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("https://judge-c.example/v1", {"Authorization": "Bearer x"}),
        ("http://127.0.0.1:8000/v1", {"Authorization": "Bearer x"}),
        ("http://[::1]:8000/v1", {"x-api-key": "x"}),
        ("http://localhost:8000/v1", {"Authorization": "Bearer x"}),
        ("http://judge-c.example/v1", {"X-Title": "mine"}),
        ("http://judge-c.example/v1", {}),
        ("http://judge-c.example/v1?api-version=2", {}),
    ],
)
def test_nobody_is_warned_without_a_key_or_on_this_machine_or_with_encryption(
    url: str, headers: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_readable_key(url, headers)
    assert not caplog.records
