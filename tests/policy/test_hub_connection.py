"""A model that is neither in the cache nor on a hub that can be reached is refused at once."""

from __future__ import annotations

import socket
from pathlib import Path

import huggingface_hub.constants
import pytest
from hub_cache import cached_on_hub

from rewardflow.errors import InvalidInput
from rewardflow.policy.hub_connection import require_hub
from rewardflow.policy.load_policy import load_policy, outline_policy
from rewardflow.settings.run_settings import PolicySettings


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """A port of this machine where the hub is said to be, with nobody there, and an empty cache."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        found: int = free.getsockname()[1]
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{found}")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return found


def test_a_hub_that_nobody_can_connect_to_is_named_with_the_key_and_the_model(port: int) -> None:
    with pytest.raises(
        InvalidInput, match=rf"policy\.model must be .* got no-such/model, .* no connection to http://127.0.0.1:{port}"
    ):
        require_hub("policy.model", "no-such/model")


def test_loading_and_outlining_ask_the_hub_once(port: int) -> None:
    for load in (lambda settings: load_policy(settings, seed=0), outline_policy):
        with pytest.raises(InvalidInput, match=r"policy\.model must be .* no connection to"):
            load(PolicySettings(model="no-such/model"))
        with pytest.raises(InvalidInput, match=r"policy\.tokenizer must be .* no connection to"):
            load(PolicySettings(tokenizer="no-such/model"))


def test_a_hub_that_listens_is_left_to_the_library(port: int) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", port))
        listening.listen()
        require_hub("policy.model", "some/model")


def test_a_model_in_the_cache_needs_no_hub(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = cached_on_hub(tmp_path, monkeypatch, lambda folder: folder.mkdir(parents=True) or folder)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    require_hub("policy.model", name)


def test_a_proxy_may_reach_the_hub(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    require_hub("policy.model", "some/model")
