"""A cache of the Hugging Face hub with one model in it, and no network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import pytest

_COMMIT = "0123456789abcdef0123456789abcdef01234567"


def cached_on_hub(folder: Path, monkeypatch: pytest.MonkeyPatch, save: Callable[[Path], Path]) -> str:
    """Lets `save` write a model into a cache in the folder, as a download would, and returns its name."""
    repository = folder / "models--nobody--tiny"
    save(repository / "snapshots" / _COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(_COMMIT, "utf-8")
    # The library reads HF_HUB_CACHE and HF_HUB_OFFLINE when it is imported.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return "nobody/tiny"
