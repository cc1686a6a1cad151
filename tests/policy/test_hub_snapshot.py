"""The folder of a model on the hub: that of the cache, where nothing is asked over the network."""

from __future__ import annotations

from pathlib import Path

import pytest
from hub_cache import cached_on_hub

from rewardflow.errors import InvalidInput
from rewardflow.policy.hub_snapshot import snapshot_folder


def save_nothing(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def test_a_model_in_the_cache_is_found_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = cached_on_hub(tmp_path, monkeypatch, save_nothing)
    folder = snapshot_folder(name)
    assert folder.is_dir()
    assert folder.is_relative_to(tmp_path / "models--nobody--tiny" / "snapshots")


def test_a_model_that_is_not_in_the_cache_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached_on_hub(tmp_path, monkeypatch, save_nothing)
    with pytest.raises(InvalidInput, match=r"policy\.model could not be downloaded from nobody/else"):
        snapshot_folder("nobody/else")
