"""Proxies: those that the environment names, but never for this machine."""

from __future__ import annotations

import os

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.services.http.proxies import EnvironmentProxies, Proxy


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


def proxy_of(url: str) -> Proxy | None:
    return EnvironmentProxies().proxy_of(url)


def test_without_a_word_in_the_environment_there_is_none() -> None:
    assert proxy_of("https://api.openai.com/v1") is None


def test_each_scheme_has_its_own_and_all_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://secure:3128")
    assert proxy_of("https://api.openai.com/v1") == Proxy("http://secure:3128")
    assert proxy_of("http://gpu-1:8000") is None
    monkeypatch.setenv("ALL_PROXY", "other:3128")
    assert proxy_of("http://gpu-1:8000") == Proxy("http://other:3128")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "[::1]", "x.localhost"])
def test_this_machine_is_spoken_to_directly(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://p:1")
    assert proxy_of(f"http://{host}:8000/v1") is None


def test_no_proxy_names_hosts_and_their_domains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://p:1")
    monkeypatch.setenv("no_proxy", "gpu-1,.cluster.local,gpu-2:8000")
    direct = ["http://gpu-1:8000", "http://a.cluster.local", "http://gpu-2:8000"]
    assert [proxy_of(url) for url in direct] == [None] * 3
    assert proxy_of("http://gpu-3:8000") is not None
    assert proxy_of("http://gpu-2:9000") is not None


def test_a_password_is_sent_in_a_header_and_is_neither_in_the_address_nor_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://me:s%40crt@p:1")
    proxy = proxy_of("http://gpu-1")
    assert proxy == Proxy("http://p:1", {"Proxy-Authorization": "Basic bWU6c0BjcnQ="})
    assert "bWU6" not in repr(proxy)


def test_a_proxy_that_is_no_http_address_is_refused_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "socks5://me:s3cret-s3cret@p:1")
    with pytest.raises(InvalidInput, match="http or https") as caught:
        proxy_of("http://gpu-1")
    assert "s3cret" not in str(caught.value)


def test_a_host_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    proxies = EnvironmentProxies()
    monkeypatch.setenv("http_proxy", "http://first:1")
    assert proxies.proxy_of("http://gpu-1/a") == Proxy("http://first:1")
    monkeypatch.setenv("http_proxy", "http://second:1")
    assert proxies.proxy_of("http://gpu-1/b") == Proxy("http://first:1")
    assert proxies.proxy_of("http://gpu-2/a") == Proxy("http://second:1")
