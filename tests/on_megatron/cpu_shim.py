"""Lets megatron-core, which is written for CUDA, run on the CPU. For tests alone: the product runs it on GPUs.

Where megatron-core names the current CUDA device, it is told the CPU; tensors it asks for on CUDA are made on the CPU;
where it compares a tensor's type with the name of a CUDA type, the name is given.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


def pretend_cuda() -> None:
    """For the whole process, before megatron-core is imported."""
    cpu = torch.device("cpu")
    torch.cuda.current_device = lambda: cpu
    torch.cuda.synchronize = lambda *args, **kwargs: None
    torch.cuda.get_rng_state = torch.cuda.random.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    torch.cuda.manual_seed = torch.manual_seed
    import megatron.core.tensor_parallel.random as random

    random._set_cuda_rng_state = lambda state, device=-1, graph_safe=False: torch.set_rng_state(state)
    random._get_cuda_rng_state = lambda device="cuda", clone=False, graph_safe=False: torch.get_rng_state()


class CudaIsCpu(TorchFunctionMode):
    """In force on the thread that enters it."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        kwargs.pop("pin_memory", None)
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = torch.device("cpu")
        if function is torch.Tensor.cuda:
            return args[0]
        if function is torch.Tensor.type and len(args) == 1 and not kwargs:
            return function(*args).replace("torch.", "torch.cuda.", 1)
        return function(*args, **kwargs)


def pretend_in_every_thread() -> None:
    """For code that starts its own threads: those started from now on see the CPU where CUDA is named."""
    pretend_cuda()
    run = threading.Thread.run

    def pretending(thread: threading.Thread) -> None:
        with CudaIsCpu():
            run(thread)

    threading.Thread.run = pretending
