"""A plan's settings: from a file, from the command line, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.plan.plan_file import load_plan

LEAST = ("prompts=8", "device.generation_s=10", "device.update_s=20")


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.yaml"
    path.write_text(
        "prompts: 8\ndevice: {generation_s: 10, update_s: 20}\nservice: {slots: 16, latency: 'uniform:1,40'}\n"
    )
    return path


def test_the_command_line_alone_is_enough() -> None:
    plan = load_plan(overrides=LEAST)
    assert (plan.prompts, plan.device.generation_s, plan.service.slots) == (8, 10, 64)


def test_an_override_changes_one_key_of_a_section_and_leaves_the_others(plan_file: Path) -> None:
    plan = load_plan(plan_file, ["service.slots=32", "limits.max_attempts=5"])
    assert (plan.service.slots, plan.service.latency) == (32, "uniform:1,40")
    assert plan.limits == {"max_attempts": 5}


def test_latency_may_be_a_list_of_quantiles(plan_file: Path) -> None:
    latency = load_plan(plan_file, ["service.latency=[1, 2, 9]"]).service.latency_function()
    assert [latency(luck) for luck in (0.0, 0.5, 0.75, 1.0)] == [1, 2, 5.5, 9]


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("prompt=8", "did you mean 'prompts'"),
        ("service.slot=8", "did you mean 'slots'"),
        ("device.generation=8", "did you mean 'generation_s'"),
        ("prompts=many", "prompts must be a whole number"),
        ("prompts=0", "prompts must be a whole number of at least 1"),
        ("prompts=10", "groups_per_step must be divisible by mini_batches"),
        ("device.update_s=-1", "update_s must be a number of at least 0"),
        ("device.rollouts_end=[1, 0]", "rollouts_end must be shares"),
        ("service.latency=gauss:1,2", "latency must be constant:S"),
        ("service.latency=[2, 1]", "quantiles"),
        ("service.failures=2", "failures must be"),
        ("service.tpm=1000", "tokens must say"),
        ("limits.max_atempts=1", "did you mean 'max_attempts'"),
        ("limits.max_concurrency=9", "set as service.slots"),
        ("limits.journal=run.db", "no part in a simulation"),
        ("schedules=[synchron]", "did you mean 'synchronous'"),
        ("simulated_steps=5", "simulated_steps must be at least"),
        ("published=[{name: a, synchronous_s: 5, changes: {}}]", "as_original must be true"),
        ("service=3", "service must be a mapping"),
        ("nonsense", "an override must be key=value"),
        ("a..b=1", "must have a name between its dots"),
        ("prompts=[", "must be valid YAML"),
    ],
)
def test_what_is_wrong_is_told_with_its_rule(plan_file: Path, override: str, told: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        load_plan(plan_file, [override])
    assert told in str(caught.value)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(InvalidInput, match="prompts, device must be given"):
        load_plan()


def test_a_file_that_is_not_there_or_no_mapping_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"nothing\.yaml: the file must exist"):
        load_plan(tmp_path / "nothing.yaml")
    (tmp_path / "list.yaml").write_text("[1, 2]\n")
    with pytest.raises(InvalidInput, match=r"list\.yaml: a plan file must be a mapping"):
        load_plan(tmp_path / "list.yaml")
