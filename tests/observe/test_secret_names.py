"""Names of variables and settings tell whether they hold a secret."""

from __future__ import annotations

import pytest

from rewardflow.observe.secret_names import is_secret_setting, is_secret_variable


@pytest.mark.parametrize(
    "name",
    [
        *("OPENAI_API_KEY", "OPENAI_API_KEY_PROD", "AZURE_OPENAI_KEY_2", "GITHUB_PAT", "DB_PASS", "PGPASSWORD"),
        *("MYSQL_PWD", "HF_TOKEN", "HF_TOKENS_EU", "REDISCLI_AUTH", "SERVICE_CREDENTIALS", "GCP_CREDS", "SENTRY_DSN"),
        *("AWS_SECRET_ACCESS_KEY", "apiKey", "judgeApiKey", "x-api-key", "SLACK_WEBHOOK_URL", "SESSION_COOKIE"),
        *("AZURE_STORAGE_CONNECTION_STRING", "SSH_PASSPHRASE", "JUDGE_JWT", "BASIC_AUTH", "SECRET_KEY_BASE"),
    ],
)
def test_a_name_with_a_part_for_a_secret_is_secret(name: str) -> None:
    assert is_secret_variable(name)


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "PWD", "OLDPWD", "HOME", "GOPATH", "TOKENIZERS_PARALLELISM", "KEYBOARD_LAYOUT", "GIT_AUTHOR_NAME"),
        *("SSH_AUTH_SOCK", "HF_TOKEN_PATH", "RAY_AUTH_MODE", "MAX_TOKENS", "XAUTHORITY", "BYPASS", "PATTERN", "", "_"),
        *("api_key_env", "api_key_header", "TOKEN_URL", "MONKEYPATCH_ALL"),
    ],
)
def test_a_name_that_only_resembles_one_or_says_where_a_secret_is_kept_is_not(name: str) -> None:
    assert not is_secret_variable(name)


def test_settings_that_name_columns_and_tokens_are_not_secrets() -> None:
    for name, value in {"answer_key": "response", "stop_token": "<|im_end|>", "label_key": "expected answer 1"}.items():
        assert not is_secret_setting(name, value)
    for name, value in {"api_key": "abcdefgh", "password": "hunter2", "judge_key": "q7Zp0aTTlm29xw"}.items():
        assert is_secret_setting(name, value)
