"""Finds the folder of this machine that holds the weights of a model on the Hugging Face hub.

Always true: files that are missing are downloaded once for all processes of a machine, because the library locks each
file; with HF_HUB_OFFLINE only what is in the cache is used. Only weights are asked for: transformers reads the
configuration and the tokenizer by itself.
"""

from __future__ import annotations

from pathlib import Path

from rewardflow.errors import InvalidInput
from rewardflow.policy.hub_connection import require_hub

# The weights as transformers names them, and the file that says that they belong to another model.
_FILES = ("model*.safetensors", "model.safetensors.index.json", "adapter_config.json")


def snapshot_folder(name: str) -> Path:
    """Downloads the weights of a model unless they are here, and returns their folder."""
    from huggingface_hub import snapshot_download

    require_hub("policy.model", name)
    try:
        return Path(snapshot_download(name, allow_patterns=list(_FILES)))
    except (OSError, ValueError) as error:
        first_line = str(error).partition("\n")[0]
        raise InvalidInput(
            f"policy.model could not be downloaded from {name}: {type(error).__name__}: {first_line}"
        ) from error
