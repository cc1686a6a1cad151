"""Rollouts with their verdicts in parquet: every column, exact texts, whole files, and nothing twice."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from tiny_run import settings_in

from rewardflow.flow.records import JudgedRollout
from rewardflow.flow.schedule import Schedule
from rewardflow.observe.run_directory import ROLLOUTS_VERSION_KEY
from rewardflow.runtime.local import embedded
from rewardflow.runtime.records.rollout_parquet import (
    COLUMNS,
    RolloutFiles,
    file_of,
    in_whole_groups,
    write_file,
)
from rewardflow.settings.run_settings import CheckpointSettings, RolloutSettings, RunSettings
from rewardflow.types import Reward, Rollout

torch.set_num_threads(1)

PAGE = Path(__file__).resolve().parents[3] / "docs" / "run_directory.md"
TIMEOUT_S = 30.0


def judged(group: int = 0, index: int = 0, *, response: str = "yes", value: float | None = 1.0, **fields: Any) -> Any:
    rollout = Rollout(group_id=str(group), index=index, group_size=4, response=response, policy_version=2, step=3)
    return JudgedRollout(rollout=rollout, reward=Reward(value=value), **fields)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return pq.read_table(path).to_pylist(maps_as_pydicts="strict")


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def train(settings: RunSettings, **options: Any) -> None:
    async def run() -> None:
        async with embedded(settings, **options) as run:
            await run.train()

    asyncio.run(run())


# -- a file --


def test_a_row_has_all_that_is_known_of_a_rollout_and_its_verdict(tmp_path: Path) -> None:
    one = JudgedRollout(
        rollout=Rollout(
            group_id="7",
            index=1,
            group_size=2,
            response="42",
            messages=[{"role": "user", "content": "6 x 7?"}],
            ground_truth={"answer": 42},
            data_source="sums",
            step=5,
            response_mask=[0, 1, 1],
            policy_version=4,
        ),
        reward=Reward(
            value=0.5,
            components={"judge": 0.25, "rule": None},
            query="is it right?",
            explanation="half",
            attempts=2,
            latency_s=1.5,
            cost_usd=0.01,
        ),
        advantage=torch.tensor([1.0, 2.0]),
    )
    write_file(tmp_path / "rows.parquet", 5, [one])
    assert rows_of(tmp_path / "rows.parquet") == [
        {
            "step": 5,
            "group_id": "7",
            "index": 1,
            "prompt": "",
            "messages": '[{"role":"user","content":"6 x 7?"}]',
            "response": "42",
            "ground_truth": '{"answer":42}',
            "data_source": "sums",
            "score": 0.5,
            "status": "scored",
            "kind": None,
            "error": None,
            "imputed": False,
            "components": {"judge": 0.25, "rule": None},
            "query": "is it right?",
            "explanation": "half",
            "latency_s": 1.5,
            "cost_usd": 0.01,
            "attempts": 2,
            "cached": False,
            "advantage": 1.5,
            "policy_version": 4,
            "staleness": 1,
            "num_tokens": 2,
            "trained": True,
            "why_not": None,
        }
    ]


@pytest.mark.parametrize(
    "text", ["", "a\r\nb\t\x00\x1b[31m", "名前 \U0001f600 \u2028", "<script>{{x}}</script>", "x" * 100_000]
)
def test_texts_are_exactly_what_was_said(tmp_path: Path, text: str) -> None:
    write_file(tmp_path / "rows.parquet", 3, [judged(response=text, advantage=0.0)])
    assert [row["response"] for row in rows_of(tmp_path / "rows.parquet")] == [text]


def test_half_a_surrogate_pair_is_written_as_its_escape(tmp_path: Path) -> None:
    write_file(tmp_path / "rows.parquet", 3, [judged(response="a\ud83d")])
    assert rows_of(tmp_path / "rows.parquet")[0]["response"] == "a\\ud83d"


def test_every_file_has_the_same_schema_and_its_version(tmp_path: Path) -> None:
    full = JudgedRollout(
        rollout=judged().rollout, reward=Reward(value=1.0, components={"a": 1.0}, query="q"), advantage=[0.5, 1.5]
    )
    for name, rollouts in {"empty": [], "failed": [judged(value=None, why_not="failed")], "full": [full]}.items():
        write_file(tmp_path / name, 0, rollouts)
    schemas = [pq.read_schema(tmp_path / name) for name in ("empty", "failed", "full")]
    assert schemas[0].equals(schemas[1], check_metadata=True)
    assert schemas[1].equals(schemas[2], check_metadata=True)
    assert schemas[0].metadata[ROLLOUTS_VERSION_KEY] == b"1"
    assert not (tmp_path / "full").stat().st_mode & 0o077


def test_the_columns_are_those_that_the_page_explains_with_their_types(tmp_path: Path) -> None:
    write_file(tmp_path / "rows.parquet", 0, [])
    written = {field.name: str(field.type) for field in pq.read_schema(tmp_path / "rows.parquet")}
    section = PAGE.read_text("utf-8").partition("## rollouts/\n")[2]
    explained = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, re.MULTILINE))
    explained["components"] = explained["components"].replace("map of string to double", written["components"])
    assert explained == written
    assert list(explained) == list(COLUMNS)


# -- which rollouts --


def test_the_limit_takes_whole_groups_and_at_least_one() -> None:
    rollouts = [judged(group, index) for group in range(3) for index in range(4)]
    kept = {limit: len(in_whole_groups(rollouts, limit)) for limit in (1, 4, 7, 8, 11, 12, None)}
    assert kept == {1: 4, 4: 4, 7: 4, 8: 8, 11: 8, 12: 12, None: 12}


def test_only_every_nth_step_is_looked_at(tmp_path: Path) -> None:
    files = RolloutFiles(tmp_path / "rollouts", RolloutSettings(every=2))
    for step in range(5):
        files.write(step, (judged() for _ in range(1)) if step % 2 == 0 else _untouchable())
    files.close(TIMEOUT_S)
    assert names_in(tmp_path / "rollouts") == [file_of(tmp_path, step).name for step in (0, 2, 4)]
    assert files.statistics().num_written == 3


def _untouchable() -> Any:
    raise AssertionError("nobody wants these")
    yield


def test_a_disk_that_is_full_costs_the_file_and_not_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = RolloutFiles(tmp_path / "rollouts", RolloutSettings())
    (tmp_path / "rollouts").rmdir()
    files.write(0, [judged()])
    files.close(TIMEOUT_S)
    assert files.statistics().num_lost == 1
    assert "rollouts cannot be written, and the run goes on" in caplog.text


def test_files_of_steps_that_will_be_trained_again_and_drafts_are_removed(tmp_path: Path) -> None:
    for name in (
        "step_000001.parquet",
        "step_000002.parquet",
        "step_1000000.parquet",
        ".step_000000.parquet.tmp",
        "mine",
    ):
        (tmp_path / name).touch()
    RolloutFiles(tmp_path, RolloutSettings(), next_step=2).close(TIMEOUT_S)
    assert names_in(tmp_path) == ["mine", "step_000001.parquet"]


# -- of a run --


def test_a_run_writes_the_rollouts_of_each_step_with_scores_advantages_and_staleness(tmp_path: Path) -> None:
    train(settings_in(tmp_path, run_dir=tmp_path / "run"))
    folder = tmp_path / "run" / "rollouts"
    assert names_in(folder) == [file_of(folder, step).name for step in range(3)]
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()]
    for step, line in enumerate(lines):
        rows = rows_of(file_of(folder, step))
        assert [(row["group_id"], row["index"]) for row in rows] == [
            (str(4 * step + group), index) for group in range(4) for index in range(4)
        ]
        assert sum(row["score"] for row in rows) / 16 == pytest.approx(line["score_mean"])
        assert sum(row["cost_usd"] for row in rows) == pytest.approx(line["cost_usd"])
        assert {row["staleness"] for row in rows} == {min(step, 1)}
        assert all(row["trained"] and row["why_not"] is None for row in rows)
        for first in range(0, 16, 4):
            assert sum(row["advantage"] for row in rows[first : first + 4]) == pytest.approx(0.0, abs=1e-4)
        assert sum(row["num_tokens"] for row in rows) / 16 == pytest.approx(line["response_tokens_mean"])


def test_what_was_not_trained_says_why(tmp_path: Path) -> None:
    train(settings_in(tmp_path, "refusing_later", steps=1, run_dir=tmp_path / "run"))
    rows = rows_of(file_of(tmp_path / "run" / "rollouts", 0))
    assert {(row["status"], row["kind"], row["score"], row["trained"], row["why_not"]) for row in rows} == {
        ("failed", "service", None, False, "too_few_verdicts")
    }
    assert all("gone" in row["error"] for row in rows)


@pytest.mark.parametrize("place", ["run", "reward"])
def test_where_the_journal_keeps_no_texts_neither_do_the_files(tmp_path: Path, place: str) -> None:
    settings = settings_in(tmp_path, steps=1, run_dir=tmp_path / "run")
    private = {"store": "hash"}
    train(
        replace(settings, limits=private)
        if place == "run"
        else replace(settings, reward={"reward": "gsm8k", "limits": private})
    )
    rows = rows_of(file_of(tmp_path / "run" / "rollouts", 0))
    assert all(row["score"] is not None and row["num_tokens"] for row in rows)
    texts = ("prompt", "messages", "response", "ground_truth", "query", "explanation")
    assert {row[name] for row in rows for name in texts} == {None}


def test_rollouts_can_be_left_out_and_need_no_directory(tmp_path: Path) -> None:
    train(settings_in(tmp_path, run_dir=tmp_path / "run", rollouts=RolloutSettings(every=None), steps=1))
    assert not (tmp_path / "run" / "rollouts").exists()
    train(settings_in(tmp_path, steps=1))


def test_a_run_that_goes_on_has_the_rollouts_of_one_that_was_not_interrupted(tmp_path: Path) -> None:
    class Cut(Exception):
        pass

    def cut(report: Any) -> None:
        if report.step == 2:
            raise Cut

    found = []
    for name, cuts in (("whole", False), ("cut", True)):
        settings = settings_in(
            tmp_path,
            run_dir=tmp_path / name,
            steps=4,
            schedule=Schedule(groups_per_step=4, mini_batches=2, stream="mini_batch", max_staleness=1, order="fixed"),
            checkpoint=CheckpointSettings(every=1),
            limits={"journal": str(tmp_path / f"{name}.db")},
        )
        if cuts:
            with pytest.raises(Cut):
                train(settings, on_step=cut)
            train(settings, resume=True)
        else:
            train(settings)
        folder = tmp_path / name / "rollouts"
        rows = [row for path in sorted(folder.iterdir()) for row in rows_of(path)]
        found.append([{key: row[key] for key in ("step", "group_id", "index", "response", "score")} for row in rows])
    assert found[0] == found[1]
    assert len(found[0]) == 4 * 16
