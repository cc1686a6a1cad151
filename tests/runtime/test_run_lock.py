"""Two processes never train in one run directory at once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_run import settings_in

from rewardflow.errors import InvalidInput
from rewardflow.observe.run_directory import RunDirectory
from rewardflow.runtime.local import embedded
from rewardflow.runtime.prepare import check_start
from rewardflow.runtime.run_lock import sole_use

torch.set_num_threads(1)

HOLDER = """
import sys
from pathlib import Path
from rewardflow.runtime.run_lock import sole_use
with sole_use(Path(sys.argv[1])):
    print("holding", flush=True)
    sys.stdin.read()
"""


def test_a_directory_that_another_process_uses_is_refused_until_that_process_is_dead(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "run")
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"holding\n"
        with (
            pytest.raises(InvalidInput, match=r"one process at a time, got .*run, which is in use"),
            sole_use(tmp_path / "run"),
        ):
            pass
        holder.kill()
    with sole_use(tmp_path / "run"):
        pass


def test_a_run_that_goes_on_cannot_be_resumed_and_keeps_its_metrics(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, steps=2, run_dir=tmp_path / "run")

    async def resume_while_it_trains() -> None:
        async with embedded(settings, probes=False) as run:
            await run.train()
            before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
            with pytest.raises(InvalidInput, match="which is in use"):
                async with embedded(settings, probes=False, resume=True):
                    pass
            assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before

    asyncio.run(resume_while_it_trains())


def test_a_damaged_run_file_is_told_before_anything_is_asked_or_loaded(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, steps=2, run_dir=tmp_path / "run")
    RunDirectory.create(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text('{"schema_')
    with pytest.raises(InvalidInput, match=r"needs a readable run\.json"):
        check_start(settings, resume=True)
