"""Refuses at once a model that can come neither from the cache of the Hugging Face hub nor from the hub itself.

Always true: at most one connection is tried and nothing is sent; the library alone would try again for half a minute. A
hub behind a proxy, or one that is switched off (HF_HUB_OFFLINE), is left to the library.
"""

from __future__ import annotations

import socket
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Final

from rewardflow.errors import InvalidInput

_CONNECT_S: Final = 5.0


def require_hub(key: str, name: str) -> None:
    """Raises if the model is not in the cache and nobody can connect to the hub."""
    from huggingface_hub import constants

    endpoint = constants.ENDPOINT
    address = urllib.parse.urlsplit(endpoint)
    if constants.HF_HUB_OFFLINE or _is_cached(name) or _is_behind_proxy(address):
        return
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        socket.create_connection((address.hostname or "", port), timeout=_CONNECT_S).close()
    except OSError as error:
        raise InvalidInput(
            f"{key} must be a path that exists or a model on the hub, got {name}, which is not here, not in the hub's "
            f"cache, and no connection to {endpoint} can be made: {error}"
        ) from error


def _is_cached(name: str) -> bool:
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = repo_folder_name(repo_id=name, repo_type="model")
    return (Path(constants.HF_HUB_CACHE) / folder / "snapshots").is_dir()


def _is_behind_proxy(address: urllib.parse.SplitResult) -> bool:
    named = urllib.request.getproxies()
    return bool(named.get(address.scheme) or named.get("all")) and not urllib.request.proxy_bypass(address.netloc)
