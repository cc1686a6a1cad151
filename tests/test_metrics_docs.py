"""docs/metrics.md explains every name of metrics.jsonl, and none that is not there."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
import torch
from tiny_run import settings_in

from rewardflow.flow.reports import StepReport
from rewardflow.runtime.local import embedded
from rewardflow.runtime.records.training_warnings import SANE
from rewardflow.settings.run_settings import AlgorithmSettings

torch.set_num_threads(1)

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"


def fields_explained(page: str) -> list[str]:
    """Of the table of names, units and meanings, in order."""
    section = page.partition("## Names\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|[^|]*\|[^|]+\|$", section, re.MULTILINE)


def complaints_about(page: str, written: set[str]) -> list[str]:
    explained = fields_explained(page)
    complaints = [f"{name} is not explained" for name in sorted(written - set(explained))]
    complaints += [f"there is no field {name}" for name in sorted(set(explained) - written)]
    return complaints + [f"{name} is explained twice" for name in {n for n in explained if explained.count(n) > 1}]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[StepReport]:
    """Of a run with a critic and every term of the loss."""
    folder = tmp_path_factory.mktemp("run")
    algorithm = AlgorithmSettings(
        advantage="gae", whiten=False, kl_coef=0.01, entropy_coef=0.01, loss="decoupled", reject="token"
    )
    found: list[StepReport] = []

    async def train() -> None:
        async with embedded(settings_in(folder, algorithm=algorithm), on_step=found.append) as run:
            await run.train()

    asyncio.run(train())
    return found


def test_every_field_of_a_step_is_explained(reports: list[StepReport]) -> None:
    lines = [json.loads(json.dumps(report.to_json())) for report in reports]
    complaints = complaints_about(PAGE.read_text("utf-8"), {name for line in lines for name in line})
    assert not complaints, "\n".join(complaints)


def test_the_fields_of_mini_batches_are_those_from_trained_tokens_on(reports: list[StepReport]) -> None:
    explained = fields_explained(PAGE.read_text("utf-8"))
    of_updates = explained[explained.index("trained_tokens") : explained.index("mini_batches")]
    assert set(reports[-1].to_json()["mini_batches"][0]) == {*of_updates, "mini_batch", "epoch"}


def test_what_is_told_apart_for_each_staleness_is_told_of_the_update_too(reports: list[StepReport]) -> None:
    for report in reports:
        for update in report.updates:
            for figures in update.by_staleness.values():
                assert set(figures) <= set(update.metrics)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("| `hidden_s` | s", "| hidden_s | s", "hidden_s is not explained"),
        ("| `hidden_s` | s", "| `hidden` | s", "there is no field hidden"),
        ("| `entropy` | nats", "| `kl` | nats", "kl is explained twice"),
    ],
)
def test_a_page_that_is_wrong_is_found(reports: list[StepReport], old: str, new: str, complaint: str) -> None:
    page = PAGE.read_text("utf-8")
    assert page.count(old) == 1
    assert complaint in complaints_about(page.replace(old, new), set(reports[-1].to_json()))


# -- what the page says of warnings --


def test_the_bounds_are_those_of_the_code() -> None:
    section = PAGE.read_text("utf-8").partition("| figure | bound |")[2]
    told = [float(number) for number in re.findall(r"^\| .*? \| (?:above|below) ([\d.]+) \|", section, re.MULTILINE)]
    bounds = [
        SANE.engine_diff_mean,
        SANE.engine_diff_max,
        SANE.behaviour_kl_k3,
        SANE.effective_share,
        SANE.response_effective_share,
        SANE.clipped,
        SANE.left_out,
        SANE.entropy,
    ]
    assert told == bounds
    assert f"at least {SANE.min_tokens} tokens" in PAGE.read_text("utf-8")
