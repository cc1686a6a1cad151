"""Requests to a server on this machine: only its own address, and no page of another site."""

from __future__ import annotations

import socket

import pytest

from rewardflow.observe.own_address import is_loopback, uses_own_address


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "[::1]:8000", "10.1.2.3", socket.gethostname()])
def test_a_program_that_names_this_machine_is_let_in(host: str) -> None:
    assert uses_own_address({"Host": host}, "127.0.0.1")
    assert uses_own_address({"Host": host, "Origin": f"http://{host}"}, "127.0.0.1")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Host": "evil.example"},  # a name that its owner lets point to this machine
        {"Host": "[::1"},
        {"Host": "127.0.0.1:8000", "Origin": "http://evil.example"},
        {"Host": "127.0.0.1:8000", "Origin": "null"},
        {"Host": "127.0.0.1:8000", "Origin": "http://127.0.0.1:9000"},
    ],
)
def test_a_page_of_another_site_is_not(headers: dict[str, str]) -> None:
    assert not uses_own_address(headers, "127.0.0.1")


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_an_address_is_a_loopback_one_if_only_this_machine_reaches_it(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
