"""Secrets are removed from text, everything else stays, and the time is linear."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rewardflow.errors import InvalidInput
from rewardflow.observe.redact import (
    REDACTED,
    Redactor,
    address_to_show,
    hide_in_reward,
    hide_secrets,
    redact,
    register_address,
    register_secret,
    register_settings,
)
from rewardflow.types import Reward

REDACTOR = Redactor({})

SECRETS = {  # text that holds a secret: the part that must be removed
    "Incorrect API key provided: sk-ab12***********cdef.": "sk-ab12***********cdef",
    "key sk-proj-Ab_c1-2345678901234567890": "sk-proj-Ab_c1-2345678901234567890",
    "401 for sk-ant-api03-AbCdEf-ghij_klmnopqr": "sk-ant-api03-AbCdEf-ghij_klmnopqr",
    "Authorization: Bearer abcdef.123456~x+/=": "abcdef.123456~x+/=",
    "sent BEARER abcdef123456": "abcdef123456",
    "{'Authorization': 'Basic dXNlcjpwYXNz', 'Accept': '*/*'}": "dXNlcjpwYXNz",
    "[(b'authorization', b'Basic dXNlcjpwYXNz')]": "dXNlcjpwYXNz",
    "Proxy-Authorization: Basic dXNlcjpwYXNz": "dXNlcjpwYXNz",
    "authorization: token0123": "token0123",
    "x-api-key: 0123456789abcdef": "0123456789abcdef",
    "[('x-api-key', '0123456789abcdef')]": "0123456789abcdef",
    "headers={'api-key': 'with space and \"quote\"'}": 'with space and "quote"',
    '{"api_key": "it\'s a secret"}': "it's a secret",
    '"{\\"apiKey\\": \\"abc/def==\\"}"': "abc/def==",
    "api_key=abcd1234&model=x": "abcd1234",
    "OPENAI_API_KEY=foo-bar-baz": "foo-bar-baz",
    "export AZURE_OPENAI_KEY='deadbeef/01'": "deadbeef/01",
    "Ocp-Apim-Subscription-Key: 0123456789abcdef": "0123456789abcdef",
    "connect(password='hunter2')": "hunter2",
    "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "client_secret: abcdefgh": "abcdefgh",
    "access_token=abcdefgh": "abcdefgh",
    '{"token": "abcdefgh"}': "abcdefgh",
    "GET https://host/v1?alt=sse&key=a failed": "key=a",
    "GET https://host/v1/models?key=AbC_123-x&alt=sse": "AbC_123-x",
    "https://user:pass@host/v1": "user:pass",
    "postgres://me:p@ss:w@host:5432/db": "me:p@ss:w",
    "https://ghtoken@github.com/a/b": "ghtoken",
    "AKIAIOSFODNN7EXAMPLE is not authorized": "AKIAIOSFODNN7EXAMPLE",
    "hf_abcdefghijklmnopqrstuvwxyz123456": "hf_abcdefghijklmnopqrstuvwxyz123456",
    "gsk_abcdefghijklmnopqrstuvwxyz123456": "gsk_abcdefghijklmnopqrstuvwxyz123456",
    "xai-abcdefghijklmnopqrstuvwxyz123456": "xai-abcdefghijklmnopqrstuvwxyz123456",
    "AIzaSyA-abcdefghijklmnopqrstuvwxyz12345": "AIzaSyA-abcdefghijklmnopqrstuvwxyz12345",
    "ghp_abcdefghijklmnopqrstuvwxyz123456": "ghp_abcdefghijklmnopqrstuvwxyz123456",
    "jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.SflKxwRJSM": "eyJzdWIiOiIxMjM0In0",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----": "MIIEow",
    "-----BEGIN PRIVATE KEY-----\nMIIEow (cut)": "MIIEow",
}

HARMLESS = [
    "ServiceError: 503 Service Unavailable from https://api.openai.com/v1/chat/completions",
    "max_tokens=4096, total_tokens: 12345, unexpected token: something",
    "task-oriented-dialogue, risk-free-evaluation, hf_transfer, scikit",
    "api_key=None, password: null, token=True",
    "KeyError: 'score'; missing key: explanation; monkey=bananas; cache_key=bananas",
    "Bearer authentication required",
    "https://medium.com/@someone and mail to someone@example.com",
    "",
    "日本語 emoji 🎉 \ud800",
]


@pytest.mark.parametrize(("text", "secret"), SECRETS.items())
def test_a_secret_of_a_known_shape_is_taken_out(text: str, secret: str) -> None:
    assert secret in text
    out = REDACTOR.redact(text)
    assert secret not in out
    assert REDACTED in out


@pytest.mark.parametrize("text", HARMLESS)
def test_text_without_secrets_stays_as_it_is(text: str) -> None:
    assert REDACTOR.redact(text) == text


def test_the_text_around_a_secret_stays() -> None:
    assert REDACTOR.redact("401 (api_key=abcd1234) at https://u:p@host/v1?key=a&n=1, attempt 2") == (
        "401 (api_key=[redacted]) at https://[redacted]@host/v1?key=[redacted]&n=1, attempt 2"
    )


@given(before=st.text(), after=st.text(), text=st.sampled_from(sorted(SECRETS)))
def test_a_secret_is_found_inside_any_text(before: str, after: str, text: str) -> None:
    # A line of its own: a quotation mark before the secret may pair with one inside, and a backslash escapes.
    assert SECRETS[text] not in REDACTOR.redact(f"{before}\n{text}\n").removeprefix(before)
    assert SECRETS[text] not in REDACTOR.redact(f"{text} {after}").removesuffix(after)


FRAGMENTS = st.sampled_from(
    ["sk-", "sk-abcdefgh1", "api_key", "=", ": ", "'", '"', "\\", "Bearer ", "Authorization", "Basic ", "://", "@",
     "a/", "?key=", "&", "token", "[redacted]", "[", "]", " ", "\n", "eyJ", ".", "abcdefgh", "-", "password", "b'",
     ", ", "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "secret", "_", "AKIA", "None", "k"]
)  # fmt: skip


@given(parts=st.lists(FRAGMENTS, max_size=25))
@example(parts=["Authorization", ": ", "Bearer ", "[redacted]"])
def test_redacting_twice_changes_nothing_more(parts: list[str]) -> None:
    once = REDACTOR.redact("".join(parts))
    assert REDACTOR.redact(once) == once


@given(text=st.text())
def test_any_text_can_be_redacted(text: str) -> None:
    assert isinstance(REDACTOR.redact(text), str)


@pytest.mark.parametrize(
    "unit",
    [
        *("sk-", "sk-a ", "://", "://a", "://a@", "a@", "eyJ", "eyJ-", "eyJaaaaaaaaa", "eyJaaaaaaaaa.", "?key="),
        *("api_key=", "api_key='", 'password="', "password='a\" ", "token", "token='", "authorization: ", "bearer "),
        *("-----BEGIN PRIVATE KEY-----", "-----END ", "AKIA", "authorization: basic basic ", " ", "\n", "a", "A_KEY "),
        *("[(b'", "\\", "\"'"),
    ],
)  # fmt: skip
def test_long_hostile_text_takes_linear_time(unit: str) -> None:
    """With backtracking, a million characters would take hours, and this test would not end."""
    num_units = 1_000_000 // len(unit)
    assert REDACTOR.redact(unit * num_units + "\nsk-abcdefgh1").count("sk-abcdefgh1") == 0


@given(parts=st.lists(FRAGMENTS, min_size=1, max_size=4))
def test_no_repeated_mix_of_fragments_takes_more_than_linear_time(parts: list[str]) -> None:
    REDACTOR.redact("".join(parts) * 10_000)


# -- the environment --


def test_secrets_of_the_environment_are_removed_anywhere_in_a_text() -> None:
    redactor = Redactor(
        {"JUDGE_API_KEY": "correct-horse", "DB_PASSWORD": "battery staple/1", "HF_TOKEN_2": "tokentoken"}
    )
    text = "at correct-horse/battery%20staple%2F1, xcorrect-horsex, battery staple/1, tokentoken"
    assert redactor.redact(text) == "at [redacted]/[redacted], x[redacted]x, [redacted], [redacted]"


def test_a_variable_of_the_environment_is_secret_only_if_its_name_says_so_and_it_is_long_enough() -> None:
    redactor = Redactor(
        {"JUDGE_KEY": "short", "HOME": "/home/someone", "TOKENIZERS": "parallel-ones", "A_KEY": " " * 9}
    )
    assert (
        redactor.redact("short /home/someone parallel-ones           ")
        == "short /home/someone parallel-ones           "
    )


def test_a_secret_that_begins_with_another_goes_as_a_whole() -> None:
    redactor = Redactor({"A_KEY": "abcdefgh", "B_KEY": "abcdefgh-ijkl"})
    assert redactor.redact("abcdefgh-ijkl") == REDACTED


def test_the_line_end_of_a_secret_read_from_a_file_does_not_hide_it() -> None:
    assert Redactor({"A_SECRET": "abcdefgh\n"}).redact("got abcdefgh.") == f"got {REDACTED}."


def test_the_environment_of_the_process_is_read_at_the_first_call() -> None:
    code = "from rewardflow.observe.redact import redact; print(redact('plain-but-secret'))"
    for name, shown in (("REWARDFLOW_TEST_TOKEN", REDACTED), ("REWARDFLOW_TEST", "plain-but-secret")):
        env = {**os.environ, name: "plain-but-secret"}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == shown


def test_the_password_of_any_address_in_the_environment_is_removed() -> None:
    redactor = Redactor({"DATABASE": "postgres://me:sesame-street@db/1"})
    assert redactor.redact("login as me with sesame-street") == f"login as me with {REDACTED}"


def test_a_path_that_exists_is_no_secret_whatever_its_variable_is_called() -> None:
    assert Redactor({"SERVICE_CREDENTIALS": os.__file__}).redact(os.__file__) == os.__file__


# -- registered values --


def test_a_registered_value_is_removed_from_texts_messages_errors_and_log_records(
    caplog: pytest.LogCaptureFixture,
) -> None:
    register_secret("Bearer tulip-garden-one")
    assert hide_secrets("a tulip-garden-one") == redact("a tulip-garden-one") == f"a {REDACTED}"
    assert str(InvalidInput("got tulip-garden-one")) == f"got {REDACTED}"
    try:
        raise ValueError("tulip-garden-one")
    except ValueError:
        logging.getLogger("rewardflow.anything").warning("no %s", "tulip-garden-one", exc_info=True)
    logging.getLogger("rewardflow.anything").warning("%d of %s", 1, "tulips")
    assert "tulip-garden" not in caplog.text
    assert f"ValueError: {REDACTED}" in caplog.text
    assert caplog.records[-1].args == (1, "tulips")


def test_only_the_values_are_removed_from_the_texts_of_a_verdict_and_its_numbers_stay() -> None:
    register_secret("87654321")
    reward = Reward(
        value=0.87654321, explanation="password: hunter2, 87654321", extras={"n": 87654321, "t": ["87654321"]}
    )
    shown = hide_in_reward(reward)
    assert (shown.value, shown.explanation) == (0.87654321, f"password: hunter2, {REDACTED}")
    assert shown.extras == {"n": 87654321, "t": [REDACTED]}
    named = Reward(value=1.0, components={"87654321": 0.25, "style": None}, traceback="in 87654321")
    shown = hide_in_reward(named)
    assert (shown.components, shown.traceback) == ({REDACTED: 0.25, "style": None}, f"in {REDACTED}")
    clean = Reward(value=1.0, explanation="password: hunter2")
    assert hide_in_reward(clean) is clean


def test_the_texts_under_secret_names_of_settings_are_registered() -> None:
    register_settings(
        {
            "client": {"api_key": "rose-garden-key", "api_key_env": "ROSE_GARDEN_NAME"},
            "headers": {"Authorization": "$ROSE_GARDEN_VAR"},
            "answer_key": "rose_answers",
            "servers": ["https://me:rose-garden-pass@host/?code=rose-code-1&page=rose-page-1"],
        }
    )
    text = "rose-garden-key rose-garden-pass rose-code-1 | ROSE_GARDEN_NAME $ROSE_GARDEN_VAR rose_answers rose-page-1"
    assert hide_secrets(text) == " ".join([REDACTED] * 3) + text[text.index(" |") :]


def test_an_address_is_shown_without_its_password_and_the_values_of_its_query() -> None:
    address = "https://me:lily-pond-pass@host:1/v1?api-version=2024-10-21&x=lily-pond-x"
    assert address_to_show(address) == f"https://{REDACTED}@host:1/v1?api-version=2024-10-21&x={REDACTED}"
    assert address_to_show("http://host/v1") == "http://host/v1"
    register_address(address)
    assert hide_secrets("lily-pond-x 2024-10-21") == f"{REDACTED} 2024-10-21"
