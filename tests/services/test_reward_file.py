"""Rewards described in YAML."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import rewardflow as rf
from rewardflow.errors import InvalidInput
from rewardflow.services.reward_file import RewardFile, load_reward_file
from rewardflow.services.rules import RULES
from rewardflow.settings.reward_kinds import KINDS


@dataclass(frozen=True)
class Criterion:
    name: str
    weight: float = 1.0


@dataclass(frozen=True)
class Judge:
    model: str
    criteria: Sequence[Criterion] = (Criterion("correctness"),)
    version: str = ""

    async def compute_score(self, response: str) -> float:
        return len(response) * sum(criterion.weight for criterion in self.criteria)


@dataclass(frozen=True)
class Outer:
    inner: Judge
    corpus: Path | None = None

    async def compute_score(self, response: str) -> float:
        return await self.inner.compute_score(response)


KINDS_HERE = {"judge": f"{__name__}:Judge", "outer": f"{__name__}:Outer", "gone": "no_such_package.module:X"}


def load(tmp_path: Path, text: str, *, kinds: dict[str, str] = KINDS_HERE) -> RewardFile:
    path = tmp_path / "judge.yaml"
    path.write_text(text, "utf-8")
    return load_reward_file(path, kinds=kinds)


def problem_of(tmp_path: Path, text: str) -> str:
    with pytest.raises(InvalidInput) as raised:
        load(tmp_path, text)
    start = f"{tmp_path / 'judge.yaml'}: "
    assert str(raised.value).startswith(start)
    return str(raised.value).removeprefix(start)


# -- what a file can say --


def test_one_reward_with_its_fields_and_limits(tmp_path: Path) -> None:
    text = """
        reward: judge
        model: m
        criteria: [{name: safety, weight: 2}]
        limits: {max_concurrency: 3, journal: run.db, max_cost_usd: 1e-1}
    """
    file = load(tmp_path, text)
    assert file.parts == (rf.Weighted(Judge("m", (Criterion("safety", 2.0),)), name="judge"),)
    assert file.options == {"max_concurrency": 3, "journal": str(tmp_path / "run.db"), "max_cost_usd": 0.1}


def test_several_rewards_with_weights_names_accounts_and_limits_of_their_own(tmp_path: Path) -> None:
    text = """
        rewards:
          - {reward: judge, model: a, weight: 2, name: first, account: key, limits: {rpm: 60}}
          - {reward: judge, model: b}
        limits: {max_attempts: 2}
    """
    file = load(tmp_path, text)
    assert file.parts == (
        rf.Weighted(Judge("a"), 2.0, name="first", account="key", limits={"rpm": 60}),
        rf.Weighted(Judge("b"), 1.0, name="judge"),
    )
    assert file.options == {"max_attempts": 2}


def test_a_reward_inside_a_reward_and_a_path_from_the_files_folder(tmp_path: Path) -> None:
    file = load(tmp_path, "reward: outer\ninner: {reward: judge, model: m}\ncorpus: docs")
    assert file.parts[0].reward == Outer(Judge("m"), corpus=str(tmp_path / "docs"))  # type: ignore[arg-type]
    assert load(tmp_path, "reward: outer\ninner: {model: m}").parts[0].reward == Outer(Judge("m"))


def test_a_file_of_python_is_found_from_the_files_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def f(response, bonus=0.0):\n    return len(response) + bonus\n")
    file = load(tmp_path, "reward: mine.py:f\nbonus: 0.5\nname: length")
    assert file.parts == (rf.Weighted(f"{tmp_path}/mine.py:f", name="length", reward_kwargs={"bonus": 0.5}),)
    assert rf.score([rf.Rollout(group_id="q", response="abc")], file.parts)[0].value == 3.5
    assert load(tmp_path, "reward: mine.py").parts[0].reward == f"{tmp_path}/mine.py"
    assert load(tmp_path, "reward: package.module:f").parts[0].reward == "package.module:f"


def test_what_is_loaded_goes_to_the_agent_as_it_is(tmp_path: Path) -> None:
    file = load(tmp_path, "reward: judge\nmodel: m\nlimits: {max_concurrency: 2}")
    rollouts = [rf.Rollout(group_id="q", response="abc")]
    assert rf.score(rollouts, file.parts, **file.options)[0].value == 3.0


# -- what a file cannot say --


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the file must be a mapping with either `reward` or `rewards`, got None"),
        ("[1]", "the file must be a mapping with either `reward` or `rewards`, got [1]"),
        ("model: m", "the file must be a mapping with either `reward` or `rewards`, got the keys model"),
        ("reward: judge\nrewards: []", "the file must be a mapping with either `reward` or `rewards`, got the keys"),
        ("reward: jugde", "reward must be a known kind or named 'file.py:name', got 'jugde'; did you mean 'judge'?"),
        ("reward: xyz", "reward must be a known kind or named 'file.py:name', got 'xyz'; known: judge, outer, gone"),
        ("reward: [judge]", "reward must be text, got ['judge']"),
        ("reward: gone", "gone cannot be imported: No module named 'no_such_package'"),
        ("reward: judge", "judge: model must be given, got nothing"),
        ("reward: judge\nmodel: m\ncriteriom: []", "judge: there is no setting 'criteriom'; did you mean 'criteria'?"),
        ("reward: judge\nmodel: m\nlimit: {}", "judge: there is no setting 'limit'; did you mean 'limits'?"),
        ("reward: judge\nmodel: m\nlimits: {rppm: 3}", "limits: there is no setting 'rppm'; did you mean 'rpm'?"),
        ("reward: judge\nmodel: m\nlimits: {rpm: -3}", "limits: rpm must be a positive number or None, got -3"),
        ("reward: judge\nmodel: m\nlimits: 3", "limits must be a mapping, got 3"),
        ("reward: judge\nmodel: m\nweight: big", "weight must be a number, got 'big'"),
        ("rewards: {}", "rewards must be a list of at least one mapping, got {}"),
        ("rewards: [judge]", "rewards[0]: a reward must be a mapping with `reward`, got 'judge'"),
        ("rewards: [{reward: judge, model: m, limits: {run: x}}]", "rewards[0]: limits: there is no setting 'run'"),
        ("reward: outer\ninner: {reward: judge, modle: m}", "outer: inner: judge: there is no setting 'modle'"),
        ("rewards:\n- {reward: judge, model: a}\n- {reward: judge, model: b}",
         "weighted rewards need distinct names, got judge more than once; set name="),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_place_its_rule_and_its_value(text: str, problem: str, tmp_path: Path) -> None:
    assert problem_of(tmp_path, text).startswith(problem)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"nowhere\.yaml: the file must exist"):
        load_reward_file(tmp_path / "nowhere.yaml")


# -- the services that ship --


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_stands_for_a_dataclass_with_a_version(kind: str) -> None:
    module, _, name = KINDS[kind].partition(":")
    service: Any = getattr(importlib.import_module(module), name)
    assert "version" in [field.name for field in dataclasses.fields(service)]


def test_every_rule_is_a_kind() -> None:
    assert {name: KINDS[name].rpartition(":")[2] for name in RULES} == {name: r.__name__ for name, r in RULES.items()}


def test_a_cascade_of_a_rule_and_a_file_scores(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text("async def f(response):\n    return 0.5\n")
    text = "reward: cascade\nfirst: {reward: gsm8k}\nthen: judge.py:f\nask_below: 1"
    file = load(tmp_path, text, kinds=dict(KINDS))
    rollouts = [
        rf.Rollout(group_id=str(i), response=text, ground_truth="42") for i, text in enumerate(["#### 42", "no"])
    ]
    assert [reward.value for reward in rf.score(rollouts, file.parts)] == [1.0, 0.5]


@pytest.mark.parametrize("name", ["timeout_s", "verdict_timeout_s"])
def test_a_timeout_that_ends_calls_before_their_batches_is_refused(name: str, tmp_path: Path) -> None:
    judge = "reward: llm_judge, model: m, base_urls: ['http://127.0.0.1:1'], batch: {api: openai}"
    inside = f"reward: jury, judges: [{{{judge}}}]"
    for text in (
        f"{{{judge}, limits: {{{name}: 60}}}}",
        f"{{{inside}, limits: {{{name}: 60}}}}",
        f"{{rewards: [{{{judge}, limits: {{{name}: 60}}}}]}}",
        f"{{rewards: [{{{judge}}}], limits: {{{name}: 60}}}}",
    ):
        with pytest.raises(InvalidInput, match=f"limits: {name} must be at least 86400 with batch, .* got {name}=60"):
            load(tmp_path, text, kinds=dict(KINDS))
    for limits in (f"{name}: 90000", f"{name}: null", "max_concurrency: 9"):
        assert load(tmp_path, f"{{{judge}, limits: {{{limits}}}}}", kinds=dict(KINDS)).parts
    own = f"{{rewards: [{{{judge}, limits: {{{name}: 90000}}}}, {{reward: gsm8k}}], limits: {{{name}: 60}}}}"
    assert len(load(tmp_path, own, kinds=dict(KINDS)).parts) == 2
