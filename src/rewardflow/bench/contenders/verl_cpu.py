"""Adds what verl 0.9 lacks to run its FSDP engine on a CPU: a platform, and the engine under that platform's name.

Always true: no file of verl is changed; the engine is the one that verl registers for GPUs.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module  # verl has no types here: loaded late, it is `Any`
from typing import Any

_NO_COUNT = frozenset(("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"))


def register_cpu() -> None:
    """Registers the platform `cpu`, which verl looks up for VERL_PLATFORM=cpu."""
    base = import_module("verl.plugin.platform.platform_base").PlatformBase
    registry = import_module("verl.plugin.platform.platform_manager").PlatformRegistry
    registry.register(platform="cpu")(type("PlatformCPU", (base,), _platform_members()))
    import_module("verl.workers.engine.fsdp.transformer_impl")
    engines = import_module("verl.workers.engine.base").EngineRegistry._engines["language_model"]["fsdp2"]
    engines["cpu"] = engines["cuda"]


class _DeviceModule(types.ModuleType):
    """torch.cpu with every attribute of torch.cuda that verl uses."""

    def __getattr__(self, name: str) -> Any:
        torch = import_module("torch")
        if name.startswith("__"):
            raise AttributeError(name)
        if hasattr(torch.cpu, name):
            return getattr(torch.cpu, name)
        if name in _NO_COUNT:
            return lambda *args, **kwargs: 0
        if name == "get_device_name":
            return lambda *args, **kwargs: "cpu"
        if name == "mem_get_info":
            return lambda *args, **kwargs: (0, 0)
        if name in ("manual_seed", "manual_seed_all"):
            return torch.manual_seed
        if name == "get_rng_state":
            return lambda *args, **kwargs: torch.get_rng_state()
        if name == "set_rng_state":
            return lambda state, *args, **kwargs: torch.set_rng_state(state)
        return lambda *args, **kwargs: None


def _platform_members() -> dict[str, Any]:
    device_module = _DeviceModule("cpu_device_module")

    @contextmanager
    def nvtx_range(self: Any, message: str) -> Iterator[None]:
        yield

    def nothing(self: Any, *args: Any) -> None:
        """Does nothing: a CPU has no such operation."""

    def answering(value: Any) -> Any:
        return lambda self, *args, **kwargs: value

    return {
        "device_name": property(lambda self: "cpu"),
        "vendor_name": property(lambda self: "cpu"),
        "device_module": property(lambda self: device_module),
        "is_available": answering(True),
        "is_platform_available": answering(True),
        "current_device": answering("cpu"),
        "device_count": answering(1),
        "get_device_capability": answering((None, None)),
        "communication_backend_name": answering("gloo"),
        "visible_devices_envvar": answering("CUDA_VISIBLE_DEVICES"),
        "ray_resource_name": answering("CPU"),
        "ray_resource_options": answering({}),
        "ray_noset_envvars": answering([]),
        "is_ipc_supported": answering(False),
        "cudart": answering(None),
        "nvtx_range": nvtx_range,
        "manual_seed": lambda self, seed: import_module("torch").manual_seed(seed),
        "manual_seed_all": lambda self, seed: import_module("torch").manual_seed(seed),
        **dict.fromkeys(
            ("set_device", "synchronize", "set_allocator_settings", "empty_cache", "profiler_start", "profiler_stop"),
            nothing,
        ),
    }
