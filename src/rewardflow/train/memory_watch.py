"""Follows every tensor's memory while a program runs on tensors that have shapes and no data.

Always true: a byte is counted from the operator that allocates it until its storage is gone, and has one kind; weights
without data make everything that is computed from them be without data, so a model of any size is followed on any
machine. Not counted: what an allocator adds by fragments, the workspace of kernels, and the library's own context.

Whatever has no data answers 1 when it is asked for a number, because no branch of a trainer depends on which number it
is, as long as it is finite and not 0.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

ACTIVATIONS, GATHERED, HOST = "activations", "gathered", "host"
_REAL_UP_TO = 1 << 20  # entries of what is made from nothing: masks and token ids keep their data

# By the modules that are running: the kind of what is allocated. The first of them here decides.
_KIND_BY_MODULE: Mapping[str, str] = {
    "rewardflow.checkpoint": HOST,
    "rewardflow.train.fsdp2.sharded_loading": "weights",
    "rewardflow.algo.head_softmax": "logits",
    "rewardflow.algo.token_softmax": "logits",
    "torch.distributed.fsdp": GATHERED,
    "torch.optim": "optimizer",
}
_READS_NUMBER = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default)


@dataclass(slots=True)
class _Storage:
    alive: weakref.ref[Any]
    num_bytes: int
    kind: str


@dataclass(frozen=True, slots=True)
class Peak:
    """The most bytes at a time during a phase, and their kinds at that moment."""

    num_bytes: int
    by_kind: Mapping[str, int]


class MemoryWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """`with MemoryWatch() as watch: ...; watch.peak()`. Watches the thread that enters it.

    With `without_data=False` everything has its data, and is followed alike.
    """

    def __init__(self, *, without_data: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fake = FakeTensorMode(allow_non_fake_inputs=True) if without_data else None
        self._storages: dict[int, _Storage] = {}
        self._now: Counter[str] = Counter()
        self._total = 0
        self._peak = Peak(0, {})

    # -- what users ask ----------------------------------------------------------------------------------------------

    @property
    def now(self) -> Mapping[str, int]:
        """Returns the bytes of each kind at this moment."""
        return {kind: size for kind, size in self._now.items() if size}

    def peak(self) -> Peak:
        """Returns the peak since the last call, and starts the next phase."""
        peak, self._peak = self._peak, Peak(self._total, self.now)
        return peak

    def is_a(self, kind: str, tensors: Iterable[Tensor | None]) -> None:
        """Says what these tensors are, which until now were of the kind of whatever allocated them."""
        for tensor in tensors:
            if tensor is not None:
                found = self._storages.get(_local(tensor).untyped_storage()._cdata)
                if found is not None:
                    self._count(found.kind, -found.num_bytes)
                    found.kind = kind
                    self._count(kind, found.num_bytes)

    def without_data(self, build: Callable[[], Tensor], kind: str = ACTIVATIONS) -> Tensor:
        """Builds a tensor that has no data, and follows it."""
        assert self._fake is not None
        with self._fake:
            tensor = build()
        self._see(tensor, kind)
        return tensor

    # -- following ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> MemoryWatch:
        super().__enter__()  # type: ignore[no-untyped-call]
        self._resize = torch.UntypedStorage.resize_
        torch.UntypedStorage.resize_ = self._resized()  # type: ignore[method-assign]
        return self

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [one for one in tree_iter((args, kwargs)) if isinstance(one, Tensor)]
        is_fake = any(isinstance(one, FakeTensor) for one in tensors)
        if is_fake and func in _READS_NUMBER:
            return _one(tensors[0].dtype)
        if is_fake and func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]  # without data a copy would be made, with data it is the same tensor
        kind = None if tensors else _kind_here()
        is_large = not tensors and (kind == GATHERED or _num_made(args) > _REAL_UP_TO)
        if self._fake is not None and (is_large or _makes_room(tensors, kwargs)):
            with self._fake:
                made = func(*args, **kwargs)
        else:
            made = func(*args, **kwargs)
        for one in tree_iter(made):
            if isinstance(one, Tensor):
                kind = kind or _kind_here()
                self._see(one, kind)
        return made

    def _see(self, tensor: Tensor, kind: str) -> None:
        tensor = _local(tensor)
        if tensor.device.type == "meta":  # of an outline, which has no memory
            return
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        known = self._storages.get(key)
        if known is None or known.alive() is None:
            self._gone(key)
            self._storages[key] = _Storage(weakref.ref(storage, lambda _: self._gone(key)), size, kind)
            self._count(kind, size)
        elif known.num_bytes != size:
            self._count(known.kind, size - known.num_bytes)
            known.num_bytes = size

    def _gone(self, key: int) -> None:
        found = self._storages.pop(key, None)
        if found is not None:
            self._count(found.kind, -found.num_bytes)

    def _count(self, kind: str, num_bytes: int) -> None:
        self._now[kind] += num_bytes
        if kind != HOST:
            self._total += num_bytes
        if self._total > self._peak.num_bytes:
            self._peak = Peak(self._total, self.now)

    def _resized(self) -> Any:
        """FSDP2 frees what it gathered by resizing its storage to nothing, which is no operator."""
        resize = self._resize

        def resized(storage: torch.UntypedStorage, size: int) -> Any:
            found = self._storages.get(storage._cdata)
            if found is not None:
                self._count(found.kind, size - found.num_bytes)
                found.num_bytes = size
            return resize(storage, size)

        return resized


def _local(tensor: Tensor) -> Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _one(dtype: torch.dtype) -> Any:
    return True if dtype == torch.bool else 1.0 if dtype.is_floating_point else 1


def _makes_room(tensors: Sequence[Tensor], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator gives memory to a tensor of an outline."""
    device = kwargs.get("device")
    return device is not None and torch.device(device).type != "meta" and any(one.is_meta for one in tensors)


def _num_made(args: Any) -> int:
    """Returns the number of entries that a factory with these arguments makes, if its first one is a shape."""
    size = args[0] if args else ()
    if not isinstance(size, list | tuple) or not all(isinstance(one, int) for one in size):
        return 0
    number = 1
    for one in size:
        number *= one
    return number


def _kind_here() -> str:
    running: set[str] = set()
    frame: Any = sys._getframe(2)
    while frame is not None:
        running.add(frame.f_globals.get("__name__", ""))
        frame = frame.f_back
    for module, kind in _KIND_BY_MODULE.items():
        if any(name.startswith(module) for name in running):
            return kind
    return ACTIVATIONS
