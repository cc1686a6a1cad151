"""A bounded sample of rollouts, from files or from the journal."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from journal_entries import an_entry
from written_runs import write_run

from rewardflow.errors import InvalidInput
from rewardflow.report.rollouts.rollout_sample import MAX_CHARS, RolloutSample, sample_rollouts
from rewardflow.report.run_data import read_run
from rewardflow.reward.journal.database import open_for_writing
from rewardflow.reward.journal.verdict_rows import JournalEntry, insert, row_of
from rewardflow.types import Reward


def sample_of(path: Path, **options: Any) -> RolloutSample:
    return sample_rollouts(read_run(path), **options)


def write_journal(path: Path, *entries: JournalEntry, store: Any = "full") -> None:
    with contextlib.closing(open_for_writing(path / "journal.db", lock_timeout_s=0)) as connection:
        insert(connection, [row_of(entry, store) for entry in entries])


def write_rollouts(
    path: Path, step: int, rows: list[dict[str, Any]], version: bytes = b"1", components: Any = ()
) -> None:
    folder = path / "rollouts"
    folder.mkdir(exist_ok=True)
    defaults = {"step": step, "group_id": "7", "index": 0, "response": "42", "score": None, "kind": None}
    table = pa.Table.from_pylist([{**defaults, **row} for row in rows])
    if components:
        table = table.append_column("components", pa.array(components, pa.map_(pa.string(), pa.float64())))
    table = table.replace_schema_metadata({b"rewardflow.rollouts.version": version})
    pq.write_table(table, folder / f"step_{step:06}.parquet")


def test_a_run_without_rollouts_or_journal_says_so(tmp_path: Path) -> None:
    sample = sample_of(write_run(tmp_path / "run").path)
    assert sample.rollouts == ()
    assert "neither rollouts nor a journal" in sample.origin


def test_a_rollout_of_a_file_is_shown_whole(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run").path
    row = {
        "prompt": "6 * 7?",
        "messages": None,
        "ground_truth": "42",
        "score": 0.5,
        "query": "Is it?",
        "explanation": "It is.",
        "advantage": -0.25,
        "trained": True,
    }
    write_rollouts(path, 3, [row], components=[[("style", 0.5)]])
    (rollout,) = sample_of(path).rollouts
    assert (rollout.step, rollout.group_id, rollout.question, rollout.answer) == (3, "7", "6 * 7?", "42")
    assert (rollout.truth, rollout.score, rollout.components) == ("42", 0.5, {"style": 0.5})
    assert (rollout.query, rollout.explanation) == ("Is it?", "It is.")
    assert (rollout.facts["advantage"], rollout.facts["trained"]) == (-0.25, "yes")


def test_a_damaged_file_of_rollouts_is_named_and_costs_only_its_own_step(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run").path
    for step in range(2):
        write_rollouts(path, step, [{"response": f"of step {step}"}])
    whole = (path / "rollouts" / "step_000000.parquet").read_bytes()
    (path / "rollouts" / "step_000000.parquet").write_bytes(whole[: len(whole) // 2])
    sample = sample_of(path)
    assert [rollout.answer for rollout in sample.rollouts] == ["of step 1"]
    assert "could not be read: step_000000.parquet" in sample.origin


def test_a_conversation_is_read_as_who_said_what(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run").path
    messages = '[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "6 * 7?"}]'
    write_rollouts(path, 0, [{"messages": messages, "prompt": ""}])
    assert sample_of(path).rollouts[0].question == "system: Be brief.\n\nuser: 6 * 7?"


def test_of_a_large_step_failures_and_extremes_are_in_the_sample(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run").path
    rows: list[dict[str, Any]] = [{"index": index, "score": index / 1000} for index in range(1000)]
    rows[500] = {"index": 500, "kind": "timeout"}
    write_rollouts(path, 0, rows)
    sample = sample_of(path, at_most=20)
    assert len(sample.rollouts) == 20
    assert {0, 999, 500} <= {rollout.index for rollout in sample.rollouts}
    assert sample == sample_of(path, at_most=20)


def test_of_many_steps_some_are_looked_at_with_the_first_and_the_last(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run").path
    for step in range(40):
        write_rollouts(path, step, [{"score": 1.0}])
    steps = [rollout.step for rollout in sample_of(path).rollouts]
    assert (len(steps), steps[0], steps[-1]) == (16, 0, 39)


def test_files_of_another_schema_are_refused_by_their_version(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run").path
    write_rollouts(path, 0, [{"score": 1.0}], version=b"2")
    with pytest.raises(InvalidInput, match=r"schema version 1, got 2 in .*step_000000\.parquet"):
        sample_of(path)


def test_without_files_the_journal_is_sampled(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run").path
    verdict = Reward(value=0.5, components={"style": 0.5}, query="Is it?", explanation="It is.", attempts=1)
    write_journal(path, an_entry(1, verdict, run="default", step=2, prompt="6 * 7?", ground_truth=42))
    (rollout,) = sample_of(path).rollouts
    assert (rollout.step, rollout.question, rollout.answer, rollout.truth) == (2, "6 * 7?", "It is 42.", "42")
    assert (rollout.score, rollout.components, rollout.query) == (0.5, {"style": 0.5}, "Is it?")


def test_rewards_of_one_rollout_are_its_components(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run").path
    one = an_entry(1, Reward(value=0.5, query="style?"), run="default")
    other = JournalEntry(
        key=b"x",
        run="default",
        reward="facts",
        identity="i",
        rollout=one.rollout,
        verdict=Reward(kind="timeout", error="late"),
        at_s=0.0,
    )
    write_journal(path, one, other)
    (rollout,) = sample_of(path).rollouts
    assert rollout.components == {"judge": 0.5, "facts": None}
    assert (rollout.score, rollout.kind, rollout.error) == (None, "timeout", "late")
    assert rollout.query == "judge: style?"


def test_a_large_journal_is_sampled_evenly_and_its_late_failures_are_there(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run").path
    entries = [
        an_entry(n, Reward(kind="timeout") if n == 1900 else Reward(value=0.5), run="default", group_id=str(n))
        for n in range(2000)
    ]
    write_journal(path, *entries)
    sample = sample_of(path)
    numbers = sorted(int(rollout.group_id) for rollout in sample.rollouts)
    assert len(numbers) <= 160
    assert (numbers[0], numbers[-1]) == (0, 1999)
    assert [rollout.group_id for rollout in sample.rollouts if rollout.kind] == ["1900"]


def test_rows_of_other_runs_are_left_out(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run").path
    write_journal(path, an_entry(1, run="another"))
    assert sample_of(path).rollouts == ()


def test_a_path_that_the_run_names_is_not_opened_but_one_that_the_user_names_is(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    write_journal(elsewhere, an_entry(1, run="default", prompt="somebody else's"))
    path = write_run(tmp_path / "run").path
    events = path / "events.jsonl"
    first, _, rest = events.read_bytes().partition(b"\n")
    opened = orjson.loads(first)
    opened["settings"] = {**opened.get("settings", {}), "run": "default", "journal": str(elsewhere / "journal.db")}
    events.write_bytes(orjson.dumps(opened) + b"\n" + rest)
    sample = sample_of(path)
    assert sample.rollouts == ()
    assert "add --journal with that path" in sample.origin
    (rollout,) = sample_of(path, journal=elsewhere / "journal.db").rollouts
    assert rollout.question == "somebody else's"


def test_a_journal_without_texts_says_so(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run").path
    write_journal(path, an_entry(1, run="default", prompt="secret"), store="hash")
    (rollout,) = sample_of(path).rollouts
    assert "digests of texts only" in rollout.question
    assert "secret" not in repr(rollout)


def test_a_file_that_is_no_journal_is_no_reason_to_fail(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run").path
    (path / "journal.db").write_bytes(b"x" * 2000)
    assert "could not be read" in sample_of(path).origin


def test_a_text_that_is_too_long_says_how_much_is_missing(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run").path
    write_rollouts(path, 0, [{"response": "x" * (MAX_CHARS + 1234)}])
    assert sample_of(path).rollouts[0].answer.endswith("[… 1,234 characters more]")


@pytest.mark.parametrize("depth", [900, 5_000, 100_000])
def test_a_text_that_only_looks_like_deep_json_is_shown_as_text(depth: int, tmp_path: Path) -> None:
    path = write_run(tmp_path / "run").path
    write_rollouts(path, 3, [{"prompt": "[" * depth, "response": "[" * depth + "]" * depth}])
    (rollout,) = sample_of(path).rollouts
    assert rollout.question.startswith("[[[[")


@pytest.mark.parametrize("depth", [240, 900, 5_000, 100_000])
def test_a_value_nested_without_end_is_shown_short(depth: int, tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(depth):
        deep = [deep]
    path = write_run(tmp_path / "run").path
    write_journal(path, an_entry(run="default", ground_truth=deep))
    (rollout,) = sample_of(path).rollouts
    assert rollout.truth.startswith("[[[[")
