"""Jobs on a Ray cluster that was there before them and stays when they are gone."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import verl_job
from verl_job import LastingRay, Materials, ended_well, judged_by

from rewardflow.observe.run_directory import read_steps

MODES = {
    "with the sampler": (True, "sync"),
    "with the reward manager alone": (False, "colocate_async"),
    "in our mode": (True, "rewardflow"),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LastingRay]:
    with LastingRay() as cluster:
        yield cluster


def names_left(cluster: LastingRay, within_s: float = 60.0) -> list[str]:
    """Returns our actors that are still alive; Ray takes seconds to notice that a process has ended."""
    deadline_s = time.monotonic() + within_s
    while (names := [name for name in cluster.actors() if "rewardflow" in name]) and time.monotonic() < deadline_s:
        time.sleep(0.5)
    return names


@pytest.mark.parametrize(("launcher", "mode"), MODES.values(), ids=MODES)
def test_a_jobs_agent_ends_with_its_job_and_the_next_job_finds_its_journal(
    cluster: LastingRay, materials: Materials, tmp_path: Path, launcher: bool, mode: str
) -> None:
    mark = "" if launcher else "+"
    settings = [
        *verl_job.small(materials),
        *judged_by("delayed"),
        f"trainer.v1.trainer_mode={mode}",
        *(() if launcher else ("reward.reward_manager.name=rewardflow",)),
        f"{mark}rewardflow.max_concurrency=64",
    ]
    for _ in range(2):  # the second goes on in the first one's directory
        outcome = ended_well(tmp_path, settings, launcher=launcher, cluster=cluster)
        assert names_left(cluster) == []
        assert not list(outcome.run_dir.glob("*-wal"))  # it was closed, not cut off
        with contextlib.closing(sqlite3.connect(outcome.run_dir / "journal.db")) as journal:
            (count,) = journal.execute("SELECT count(*) FROM verdicts").fetchone()
        assert count >= 32
        if launcher:
            first, second = (read_steps(outcome.run_dir)[step]["reward"] for step in (1, 2))
            assert min(first["scored"], second["scored"]) >= 16
            assert min(first["calls"], second["calls"]) >= 16
