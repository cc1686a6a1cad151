"""What the watch counts is what the allocator hands out, and shapes alone give the same count."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from tiny_training import tiny_model
from torch import Tensor, nn
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile

from rewardflow.policy.outline import outlined
from rewardflow.train.memory_watch import MemoryWatch

torch.set_num_threads(1)
WIDE = {"hidden_size": 256, "intermediate_size": 1024, "vocab_size": 2000}  # much more than what is not followed
IDS = torch.zeros(4, 128, dtype=torch.long)


def update(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(input_ids=IDS, use_cache=False).logits.logsumexp(-1).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def allocated_at_most(work: Callable[[], Any]) -> int:
    """The most bytes that torch's allocator had given out at a time during the work, by its own events."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        work()
    tree = profiled.profiler.kineto_results.experimental_event_tree()
    sizes = sorted(
        (one.start_time_ns, one.extra_fields.alloc_size) for one in flat(tree) if one.tag == _EventType.Allocation
    )
    return max(itertools.accumulate(size for _, size in sizes))


def flat(events: Iterable[Any]) -> Iterator[Any]:
    for event in events:
        yield event
        yield from flat(event.children)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)


def watched(model: nn.Module, watch: MemoryWatch) -> int:
    optimizer = adam(model)
    watch.peak()
    before = sum(watch.now.values())
    update(model, optimizer)
    return watch.peak().num_bytes - before


def test_the_peak_of_an_update_is_that_of_the_allocators_own_events() -> None:
    model = tiny_model(**WIDE)
    optimizer = adam(model)
    expected = allocated_at_most(lambda: update(model, optimizer))
    with MemoryWatch(without_data=False) as watch:
        found = watched(tiny_model(**WIDE), watch)
    assert found == pytest.approx(expected, rel=0.02)


def test_shapes_without_data_have_the_peak_that_data_has() -> None:
    with MemoryWatch(without_data=False) as watch:
        expected = watched(tiny_model(**WIDE), watch)
    outline = outlined(lambda: tiny_model(**WIDE))
    with MemoryWatch() as watch:
        outline.to_empty(device="cpu")
        found = watched(outline, watch)
    assert found == pytest.approx(expected, rel=0.02)


def test_an_outline_has_no_memory_until_it_gets_room_and_that_is_counted_by_kind() -> None:
    outline = outlined(lambda: nn.Linear(100, 50, bias=False))
    with MemoryWatch() as watch:
        assert watch.now == {}
        outline.to_empty(device="cpu")
        watch.is_a("weights", outline.parameters())
        assert watch.now == {"weights": 100 * 50 * 4}
        made: list[Tensor] = [outline(torch.zeros(3, 100))]
        assert watch.now["activations"] >= 3 * 50 * 4
        assert float(made.pop().detach().sum()) == 1.0
        del outline
    peak = watch.peak()
    assert peak.num_bytes >= 100 * 50 * 4 + 3 * 50 * 4
    assert peak.by_kind["weights"] == 100 * 50 * 4
    assert watch.peak().num_bytes < 1000  # everything is gone


def test_what_a_storage_gives_back_by_resizing_is_gone() -> None:
    with MemoryWatch() as watch:
        tensor = watch.without_data(lambda: torch.empty(1000))
        assert sum(watch.now.values()) == 4000
        tensor.untyped_storage().resize_(0)
        assert sum(watch.now.values()) == 0
