"""A platform plug-in that lets verl 0.9's v1 trainer run on CPU: FSDP2 over gloo, and a rollout of transformers.

For tests only. verl loads it by VERL_USE_EXTERNAL_MODULES=verl_cpu_platform, and chooses it by VERL_PLATFORM=cpu.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

from rewardflow.adapters.verl.import_hooks import after_import

ROLLOUT = "transformers_cpu"
FSDP = "verl.workers.engine.fsdp.transformer_impl"
MODELS = "verl.utils.model"
_MEMORY = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")


class _DeviceModule(types.ModuleType):
    """Passes calls on to `torch.cpu`; answers others as a device without memory would."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if hasattr(torch.cpu, name):
            return getattr(torch.cpu, name)
        answers: dict[str, Any] = {
            **dict.fromkeys(_MEMORY, 0),
            "mem_get_info": (0, 0),
            "get_device_name": "cpu",
        }
        calls: dict[str, Any] = {
            "manual_seed": torch.manual_seed,
            "manual_seed_all": torch.manual_seed,
            "get_rng_state": lambda *_: torch.get_rng_state(),
            "set_rng_state": lambda state, *_: torch.set_rng_state(state),
        }
        return calls.get(name, lambda *_, **__: answers.get(name))


_DEVICE_MODULE = _DeviceModule("cpu_device_module")


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """One device, the CPU, which Ray counts as a GPU."""

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> types.ModuleType:
        return _DEVICE_MODULE

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return True

    def current_device(self) -> Any:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_resource_options(self, num_gpus: float) -> dict[str, Any]:
        return {"num_gpus": num_gpus}

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


def register_engines() -> None:
    """Registers verl's FSDP engines for the CPU: verl names only cuda and npu, but they run here unchanged."""
    from verl.workers.engine.base import EngineRegistry

    for model_type in ("language_model", "value_model"):
        for backend in ("fsdp", "fsdp2"):
            engines = EngineRegistry._engines[model_type][backend]
            engines["cpu"] = engines["cuda"]


def leave_memory_unpinned() -> None:
    """Lets a reference model on FSDP2 stay in main memory, which verl pins: that needs a CUDA driver."""
    from torch.distributed.fsdp import CPUOffloadPolicy

    sys.modules[FSDP].CPUOffloadPolicy = lambda **_: CPUOffloadPolicy(pin_memory=False)


def load_critics_without_flash_attention() -> None:
    """Loads a critic with torch's attention: verl names FlashAttention, which needs CUDA, whatever the user sets."""

    def load_valuehead_model(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
        from transformers import AutoModelForTokenClassification

        return AutoModelForTokenClassification.from_pretrained(
            local_path, dtype=torch_dtype, config=model_config, attn_implementation="sdpa"
        )

    sys.modules[MODELS].load_valuehead_model = load_valuehead_model


def take_gloo_once() -> None:
    """Replaces the backend `cpu:gloo,cpu:gloo`, which verl asks for and torch refuses, by `gloo`."""
    initialise = torch.distributed.init_process_group

    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        return initialise("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)

    torch.distributed.init_process_group = init_process_group


def register_rollout() -> None:
    from verl.workers.rollout.base import _ROLLOUT_REGISTRY

    _ROLLOUT_REGISTRY[ROLLOUT, "async"] = "verl_cpu_rollout.TransformersRollout"


def register_replica() -> None:
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    def load() -> type:
        from verl_cpu_rollout import TransformersReplica

        return TransformersReplica

    RolloutReplicaRegistry.register(ROLLOUT, load)


# Importing the engines takes five seconds, and most processes of a run need none.
torch.set_num_threads(1)
take_gloo_once()
after_import(FSDP, register_engines)
after_import(FSDP, leave_memory_unpinned)
after_import(MODELS, load_critics_without_flash_attention)
after_import("verl.workers.rollout.replica", register_replica)
after_import("verl.workers.rollout.base", register_rollout)
