"""Pages are made again when files change, one at a time, and not all the time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from written_runs import write_run

from rewardflow.observe.process_lock import ProcessLock
from rewardflow.observe.run_directory import AGENT_LOCK_FILE
from rewardflow.watch.page_cache import PageCache, tag_of


def counting() -> Callable[[], int]:
    made = iter(range(1, 100))
    return lambda: next(made)


def test_a_page_is_made_once_until_a_file_of_its_run_changes(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", steps=1)
    make = counting()

    async def main() -> list[int]:
        cache: PageCache[int] = PageCache(4)
        values = [await cache.get("a", [run.path], make) for _ in range(3)]
        os.utime(run.metrics_path, (1, 1))
        while values[-1] == 1:  # it rests for as long as four pages take
            values.append(await cache.get("a", [run.path], make))
            await asyncio.sleep(0)
        return values

    values = asyncio.run(main())
    assert values[:3] == [1, 1, 1]
    assert values[-1] == 2


def test_many_who_ask_at_once_get_one_page(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", steps=1)
    make = counting()

    async def main() -> set[int]:
        cache: PageCache[int] = PageCache(4)
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(cache.get("a", [run.path], make)) for _ in range(20)]
        return {task.result() for task in asked}

    assert asyncio.run(main()) == {1}


def test_only_the_pages_asked_for_last_are_kept(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", steps=0)
    make = counting()

    async def main() -> list[int]:
        cache: PageCache[int] = PageCache(2)
        return [await cache.get(key, [run.path], make) for key in ("a", "b", "a", "c", "a", "b")]

    assert asyncio.run(main()) == [1, 2, 1, 3, 1, 4]


def test_the_end_of_a_process_changes_the_tag_although_no_file_changed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", steps=0)
    (run.path / AGENT_LOCK_FILE).write_bytes(b"{}")
    killed = tag_of([run.path])
    with ProcessLock.acquire(run.path / AGENT_LOCK_FILE):
        assert tag_of([run.path]) != killed
