"""The section `serve` of a reward's file: its rules, by name and value."""

from __future__ import annotations

from typing import Any

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.serve.settings import ServeSettings


def test_a_section_becomes_a_record_and_the_command_line_goes_first() -> None:
    section = {"port": 1, "jobs": {"math": {"token_env": "M", "share": 2, "max_cost_usd": 20}}}
    settings = ServeSettings.of(section, port=8100)
    assert (settings.port, settings.jobs["math"].share, settings.jobs["math"].max_cost_usd) == (8100, 2, 20)


@pytest.mark.parametrize(
    ("section", "rule"),
    [
        ([], "serve must be a mapping"),
        ({"prot": 1}, "serve takes host, port"),
        ({"port": "8078"}, r"serve\.port must be int, got '8078'"),
        ({"port": 70000}, "port must be from 0 to 65535"),
        ({"host": "0.0.0.0"}, "must ask for a token"),
        ({"jobs": {"a": {}}}, r"serve\.jobs\.a must have 'token_env'"),
        ({"jobs": {"a": {"token_env": "T", "share": 50}}}, "share of a job must be from 0.1 to 10"),
        ({"jobs": {"a": {"token_env": "T", "max_cost_usd": 0}}}, "max_cost_usd of a job must be a positive number"),
        ({"jobs": {"a": {"token_env": "T", "max_waiting": 0}}}, "max_waiting of a job must be at least 1"),
        ({"max_body_mb": 0}, "max_body_mb must be above 0"),
        ({"tls_key": "key.pem"}, "tls_certificate and tls_key must be set together"),
    ],
)
def test_a_mistake_is_named_with_its_rule(section: Any, rule: str) -> None:
    with pytest.raises(InvalidInput, match=rule):
        ServeSettings.of(section)
