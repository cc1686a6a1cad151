"""Runs a function in several processes that are the ranks of one gloo group.

Always true: the process of a rank that ends its block without an error exits there, with code 0.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist


def spawn_ranks(main: Callable[..., None], num_ranks: int, *arguments: object) -> None:
    """Calls `main(rank, port, *arguments)` in one process for each rank, and raises what the first of them raised."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(main, args=(port, *arguments), nprocs=num_ranks)


@contextlib.contextmanager
def gloo_rank(rank: int, port: int, num_ranks: int) -> Iterator[None]:
    """Makes this process a rank of the group, on one thread of torch's."""
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, num_ranks, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()
    # A thread of gloo's lets go of a collective's tensors some time after the collective, for which it needs Python's
    # lock. If the interpreter is shutting down by then, that aborts the process.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
