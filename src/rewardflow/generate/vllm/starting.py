"""Starts vLLM's engine for a policy: writes the files it reads, sets its arguments and its environment.

Always true: vLLM reads no weights from disk, so it only ever generates with the trainer's; users set what is in
`VllmSettings`, and cannot override there what this module relies on.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewardflow.errors import FlowError, InvalidInput
from rewardflow.extras import install_command
from rewardflow.flow.records import Sampling
from rewardflow.generate.vllm.lifeline import own_what_follows
from rewardflow.generate.vllm.senders import backend_of
from rewardflow.policy.load_policy import Policy
from rewardflow.settings.run_settings import GenerationSettings, VllmSettings

if TYPE_CHECKING:
    import torch

_WORKER_EXTENSION = "rewardflow.generate.vllm.worker.WorkerExtension"
_GIGABYTE = 10**9
_ALONE_SHARE, _SHARED_SHARE = 0.9, 0.45  # of a GPU's memory, without and with the trainer on it

_ENVIRONMENT = {
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a process that holds torch must not be forked
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # standard output is for what people asked for
    "VLLM_NO_USAGE_STATS": "1",
}


def check_installed() -> None:
    """Looks for the package without importing it. A folder of that name on the path is no package."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        raise InvalidInput(f"generation.engine=vllm needs the package vllm: {install_command('vllm')}")


def import_vllm(vllm: VllmSettings) -> None:
    """Imports vLLM. Call it before `start`, from another frame: the import keeps the frames it was called from.

    Variables that the user has set stay. vLLM reads them here and, inherited, in its own processes.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    own_what_follows()
    if vllm.transfer == "ipc":  # handles of GPU memory are pickled, on a socket of this machine's own
        os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    importlib.import_module("vllm.v1.engine.async_llm")


def start(arguments: Mapping[str, Any]) -> Any:
    """Returns vLLM's AsyncLLM, with random weights. `write_outline` has written the folder in the arguments.

    Any thread may call it; the loop that uses the engine first owns it.
    """
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    try:
        return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"vLLM must take the settings of the run, but said: {error}") from error
    except RuntimeError as error:
        raise FlowError(f"vLLM must start, but did not: {error}; its own log says why") from error


def write_outline(policy: Policy, folder: Path) -> None:
    """Writes configuration and tokenizer, into two folders.

    Beside a configuration transformers may choose another tokenizer class.
    """
    config = copy.deepcopy(policy.model.config)
    config.architectures = [type(policy.model).__name__]
    config.save_pretrained(folder / "model")
    policy.tokenizer.save_pretrained(folder / "tokenizer")


def memory_share(vllm: VllmSettings, *, is_colocated: bool) -> float:
    """Returns the share of each GPU's memory that vLLM may take."""
    return vllm.memory_share or (_SHARED_SHARE if is_colocated else _ALONE_SHARE)


def cache_bytes(kv_cache_gb: float) -> int:
    return int(kv_cache_gb * _GIGABYTE)


def longest_sequence(settings: GenerationSettings, samplings: Sequence[Sampling]) -> int:
    """Returns the most tokens of a prompt with its response."""
    return settings.max_prompt_tokens + max(one.max_response_tokens for one in samplings)


def engine_arguments(
    settings: GenerationSettings,
    vllm: VllmSettings,
    *,
    folder: Path,
    samplings: Sequence[Sampling],
    dtype: torch.dtype,
    is_colocated: bool,
) -> dict[str, Any]:
    """Returns the arguments of vLLM's AsyncEngineArgs. `samplings` are all that requests will have, training's first.

    Workers are processes of this machine: in an actor of Ray vLLM would else ask Ray for actors of its own.
    """
    import torch

    own: dict[str, Any] = {
        "model": str(folder / "model"),
        "tokenizer": str(folder / "tokenizer"),
        "skip_tokenizer_init": not settings.stop,  # only stop strings need text
        "load_format": "dummy",
        "generation_config": "vllm",  # no defaults from the model's files
        "dtype": str(dtype).removeprefix("torch."),
        "max_model_len": longest_sequence(settings, samplings),
        "max_num_seqs": settings.max_sequences,
        "enable_prefix_caching": True,
        "logprobs_mode": "raw_logprobs" if samplings[0].temperature == 1.0 else "processed_logprobs",
        "tensor_parallel_size": vllm.tensor_parallel,
        "gpu_memory_utilization": memory_share(vllm, is_colocated=is_colocated),
        "enforce_eager": vllm.eager,
        # A CPU has nothing to give back, and vLLM refuses to try.
        "enable_sleep_mode": vllm.sleep and torch.accelerator.is_available(),
        "worker_extension_cls": _WORKER_EXTENSION,
        "disable_log_stats": True,
    }
    if (backend := backend_of(vllm.transfer)) is not None:
        own["weight_transfer_config"] = {"backend": backend}
    if vllm.kv_cache_gb is not None:
        own["kv_cache_memory_bytes"] = cache_bytes(vllm.kv_cache_gb)
    if vllm.devices:
        own["device_ids"] = list(vllm.devices)
    if taken := sorted(own.keys() & vllm.arguments.keys()):
        raise InvalidInput(f"vllm.arguments must not hold what other settings decide, got {', '.join(taken)}")
    return {**own, **({"distributed_executor_backend": "mp"} if vllm.tensor_parallel > 1 else {}), **vllm.arguments}
