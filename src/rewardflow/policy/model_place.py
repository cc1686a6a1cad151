"""Finds where the files of a model are, without loading anything heavy.

Always true: a path that exists is read from this machine, and only other names are looked up on the hub; a place that
cannot hold what the settings name raises `InvalidInput`, which names the key. Neither torch nor transformers is
imported, so that a missing model is refused at once.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardflow.errors import InvalidInput
from rewardflow.extras import install_command
from rewardflow.settings.run_settings import PolicySettings

TINY = "tiny"
_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")


def check_model_files(settings: PolicySettings) -> None:
    """Raises if the folders that the settings name do not exist, or lack the files that every model has."""
    place = None if settings.model == TINY else ModelPlace.of(settings)
    if settings.tokenizer is not None:
        check_holds_tokenizer("policy.tokenizer", find("policy.tokenizer", settings.tokenizer))
    elif place is not None:
        check_holds_tokenizer("the tokenizer of policy.model", place)


def check_holds_tokenizer(key: str, place: ModelPlace) -> None:
    if place.is_local and place.gguf_file is None and not any(Path(place.name).glob("*token*")):
        raise InvalidInput(f"{key} could not be loaded from {place.name}: the folder holds no tokenizer")


@dataclass(frozen=True, slots=True)
class ModelPlace:
    """Where transformers finds a model: a folder of this machine, or a name on the hub."""

    name: str
    is_local: bool
    gguf_file: str | None = None

    @staticmethod
    def of(settings: PolicySettings) -> ModelPlace:
        place = find("policy.model", settings.model)
        path = Path(place.name)
        gguf_file = settings.gguf_file
        if place.is_local and path.is_file() and path.suffix == ".gguf" and gguf_file is None:
            path, gguf_file = path.parent, path.name
        if gguf_file is not None:
            missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
            if missing:
                raise InvalidInput(
                    f"policy.gguf_file={gguf_file} needs {' and '.join(missing)}: {install_command('gguf')}"
                )
            if place.is_local and not (path / gguf_file).is_file():
                raise InvalidInput(f"policy.gguf_file must be a file in policy.model, got {path / gguf_file}")
        elif place.is_local and not (path / "config.json").is_file():
            raise InvalidInput(
                f"policy.model must be a folder with a config.json, as save_pretrained writes it, got {settings.model}"
            )
        return ModelPlace(str(path) if place.is_local else place.name, place.is_local, gguf_file)

    def options(self, settings: PolicySettings) -> dict[str, Any]:
        options: dict[str, Any] = {
            "local_files_only": self.is_local,
            "trust_remote_code": settings.trust_remote_code,
        }
        return options if self.gguf_file is None else {**options, "gguf_file": self.gguf_file}


def find(key: str, name: str) -> ModelPlace:
    """Returns the folder of this machine, or else the name on the hub."""
    path = Path(name).expanduser()
    if path.exists():
        return ModelPlace(str(path), is_local=True)
    if not _HUB_NAME.fullmatch(name):
        raise InvalidInput(f"{key} must be a path that exists or a name on the hub, got {name}, which does not exist")
    return ModelPlace(name, is_local=False)
