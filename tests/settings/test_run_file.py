"""Run files and overrides: what they become, and what is said about mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rewardflow.errors import InvalidInput
from rewardflow.settings.run_file import load_run
from rewardflow.settings.run_settings import RunSettings

SMALL: dict[str, Any] = {
    "reward": "judge.py:compute_score",
    "steps": 3,
    "data": {"task": "arithmetic"},
    "schedule": {"groups_per_step": 8},
}


def load(folder: Path, *overrides: str, **changes: Any) -> RunSettings:
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({**SMALL, **changes}))
    return load_run(path, overrides)


def complaint(folder: Path, *overrides: str, **changes: Any) -> str:
    """Without the file's name."""
    with pytest.raises(InvalidInput) as caught:
        load(folder, *overrides, **changes)
    return str(caught.value).removeprefix(f"{folder / 'run.yaml'}: ")


# -- values --


def test_a_file_becomes_settings_and_the_rest_are_defaults(tmp_path: Path) -> None:
    run = load(tmp_path, trainer={"lr": 1e-3, "betas": [0.9, 0.95]}, generation={"stop": ["\n"]})
    assert (run.steps, run.data.task, run.schedule.groups_per_step) == (3, "arithmetic", 8)
    assert (run.trainer.lr, run.trainer.betas, run.trainer.eps) == (1e-3, (0.9, 0.95), 1e-8)
    assert run.generation.stop == ("\n",)
    assert run.policy.model == "tiny"


def test_1e_minus_6_is_a_number_in_file_and_override(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(SMALL) + "trainer: {lr: 1e-6}\n")
    assert load_run(tmp_path / "run.yaml").trainer.lr == 1e-6
    assert load_run(tmp_path / "run.yaml", ["trainer.lr=2e-5"]).trainer.lr == 2e-5


def test_a_section_with_nothing_in_it_is_all_defaults(tmp_path: Path) -> None:
    assert load(tmp_path, trainer=None).trainer.lr == 1e-6


def test_a_validation_has_data_of_its_own_with_paths_from_the_files_folder(tmp_path: Path) -> None:
    assert load(tmp_path).validation is None
    run = load(tmp_path, "validation.every=5", validation={"data": {"path": "test.jsonl"}, "rollouts": 1})
    assert run.validation is not None
    assert run.validation.every == 5
    assert Path(str(run.validation.data.path)) == tmp_path / "test.jsonl"
    assert load(tmp_path, "validation.data.task=arithmetic", "validation.data.limit=9").validation is not None
    assert load(tmp_path, "validation=null", validation={"data": {"path": "test.jsonl"}}).validation is None


@pytest.mark.parametrize(
    ("validation", "problem"),
    [
        ({"every": 5}, "validation.data must be given"),
        ({}, "validation.data must be given"),
        ({"data": {}}, "validation.data: exactly one of task, path and dataset must be given, got none"),
        ({"data": {"split": "test"}}, "validation.data: exactly one of task, path and dataset must be given, got none"),
        ({"data": {"task": "arithmetic"}}, "validation: data.limit must say how many prompts to measure with"),
        ({"data": {"pth": "x"}}, "there is no setting 'validation.data.pth'; did you mean 'validation.data.path'?"),
        ({"data": {"path": "x"}, "rollouts": 4}, "validation.rollouts must be 1 with temperature 0"),
        ({"data": {"path": "x"}, "pass_at": [4]}, "validation.pass_at must not exceed rollouts"),
    ],
)
def test_a_mistake_in_a_validation_is_told_by_its_dotted_key(
    validation: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    assert problem in complaint(tmp_path, validation=validation)


def test_a_section_inside_a_section_is_a_record_inside_a_record(tmp_path: Path) -> None:
    trainer = {"backend": "megatron", "lr": 1e-3, "megatron": {"tensor_parallel": 2, "pipeline_parallel": 4}}
    found = load(tmp_path, "trainer.megatron.pipeline_parallel=2", trainer=trainer).trainer
    assert (found.lr, found.megatron.tensor_parallel, found.megatron.pipeline_parallel) == (1e-3, 2, 2)
    replaced = load(tmp_path, "trainer={backend: megatron}", trainer=trainer).trainer
    assert (replaced.lr, replaced.megatron.num_ranks) == (1e-6, 1)


def test_mistakes_inside_a_section_of_a_section_are_told_with_all_their_names(tmp_path: Path) -> None:
    told = complaint(tmp_path, trainer={"backend": "megatron", "megatron": {"tensor_parallel": 0}})
    assert told.startswith("trainer.megatron.tensor_parallel must be a whole number of at least 1")
    assert "trainer.megatron must be a mapping" in complaint(tmp_path, trainer={"megatron": 3})
    unused = complaint(tmp_path, trainer={"megatron": {"tensor_parallel": 2}})
    assert unused == "trainer: settings of megatron are for backend=megatron, got backend=fsdp2"


def test_limits_are_the_agents_settings_and_only_those_that_were_given(tmp_path: Path) -> None:
    run = load(tmp_path, "limits.rpm=auto", limits={"max_concurrency": 256})
    assert run.limits == {"max_concurrency": 256, "rpm": "auto"}


@pytest.mark.parametrize(
    ("text", "kind", "address"),
    [
        ("ray", "ray", None),
        ("embedded", "embedded", None),
        ("auto", "ray", "auto"),
        ("10.0.0.5:6379", "ray", "10.0.0.5:6379"),
    ],
)
def test_a_runtime_in_short_is_a_kind_or_the_address_of_a_cluster(
    text: str, kind: str, address: str | None, tmp_path: Path
) -> None:
    for run in (load(tmp_path, runtime=text), load(tmp_path, f"runtime='{text}'")):
        assert (run.runtime.kind, run.runtime.address) == (kind, address)


def test_what_belongs_to_a_runtime_in_short_may_follow_it(tmp_path: Path) -> None:
    assert load(tmp_path, "runtime=ray", "runtime.ranks=4").runtime.ranks == 4
    assert "settings of a cluster are for kind=ray" in complaint(tmp_path, "runtime.ranks=4")


# -- overrides --


def test_an_override_goes_before_the_file_and_a_later_one_before_an_earlier_one(tmp_path: Path) -> None:
    run = load(tmp_path, "steps=5", "trainer.lr=1", "trainer.lr=0.5", trainer={"lr": 2.0, "eps": 1.0})
    assert (run.steps, run.trainer.lr, run.trainer.eps) == (5, 0.5, 1.0)


def test_an_override_may_create_a_section_and_replace_one(tmp_path: Path) -> None:
    run = load(tmp_path, "policy.dtype=bfloat16", "data={task: copy_digits}", data={"task": "arithmetic", "limit": 7})
    assert (run.policy.dtype, run.data.task, run.data.limit) == ("bfloat16", "copy_digits", None)


@pytest.mark.parametrize(
    ("override", "value"),
    [("data.limit=null", None), ("data.limit=", None), ("data.limit=7", 7), (" data.limit = 7 ", 7)],
)
def test_the_value_of_an_override_is_yaml(override: str, value: int | None, tmp_path: Path) -> None:
    assert load(tmp_path, override, data={"task": "arithmetic", "limit": 3}).data.limit == value


def test_a_value_may_have_equals_signs(tmp_path: Path) -> None:
    assert load(tmp_path, "policy.attention=a=b").policy.attention == "a=b"


def test_keys_of_the_users_own_can_be_set_inside_the_reward_and_its_settings(tmp_path: Path) -> None:
    run = load(tmp_path, "reward_kwargs.sampling.n=2", reward_kwargs={"sampling": {"t": 0}, "model": "m"})
    assert run.reward_kwargs == {"sampling": {"t": 0, "n": 2}, "model": "m"}
    assert load(tmp_path, "reward_kwargs.model=m").reward_kwargs == {"model": "m"}
    assert load(tmp_path, "reward.method=flexible", reward="gsm8k").reward == {"reward": "gsm8k", "method": "flexible"}
    assert load(tmp_path, "reward.buffer=2", reward={"reward": "length", "limit": 5}).reward == {
        "reward": "length",
        "limit": 5,
        "buffer": 2,
    }


# -- paths --


def test_paths_of_the_file_start_at_its_folder_and_those_of_the_command_line_where_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    files: dict[str, Any] = {"data": {"path": "train.parquet"}, "run_dir": "out", "limits": {"journal": "run.db"}}
    run = load(tmp_path, "run_dir=out", **files)
    assert run.data.path == str(tmp_path / "train.parquet")
    assert run.limits["journal"] == str(tmp_path / "run.db")
    assert run.run_dir == str(here / "out")
    assert load(tmp_path, "data={path: x.jsonl}", **files).data.path == str(here / "x.jsonl")


@pytest.mark.parametrize(
    ("given", "placed"),
    [
        ("judge.py:compute_score", "{}/judge.py:compute_score"),
        ("judge.py", "{}/judge.py"),
        ("rewards/judge.py:Judge", "{}/rewards/judge.py:Judge"),
        ("/abs/judge.py:f", "/abs/judge.py:f"),
        ("package.module:name", "package.module:name"),
        ("judge.yaml", "{}/judge.yaml"),
    ],
)
def test_a_reward_in_a_file_is_found_from_the_folder_of_the_run_file(given: str, placed: str, tmp_path: Path) -> None:
    assert load(tmp_path, reward=given).reward == placed.format(tmp_path)


def test_contents_of_a_reward_are_kept_as_they_are_with_the_folder_their_paths_start_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = {"reward": "llm_judge", "model": "m", "base_urls": ["http://x"], "prompt": "p.txt"}
    run = load(tmp_path, reward=contents)
    assert (run.reward, run.reward_folder) == (contents, str(tmp_path))
    monkeypatch.chdir("/")
    assert load(tmp_path, "reward={reward: length, limit: 3}").reward_folder == "/"
    assert load(tmp_path, reward=contents, reward_folder="rewards").reward_folder == str(tmp_path / "rewards")


def test_a_kind_of_reward_alone_is_the_contents_of_a_reward_file(tmp_path: Path) -> None:
    assert load(tmp_path, reward="gsm8k").reward == {"reward": "gsm8k"}


def test_text_that_may_be_a_path_is_one_only_if_it_starts_like_one(tmp_path: Path) -> None:
    assert load(tmp_path, policy={"model": "Qwen/Qwen2.5-0.5B"}).policy.model == "Qwen/Qwen2.5-0.5B"
    assert load(tmp_path, policy={"model": "./model"}).policy.model == str(tmp_path / "model")


# -- mistakes --


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"trainer": {"lr": "high"}}, "trainer.lr must be a number, got 'high'"),
        ({"trainer": {"lr": -1}}, "trainer.lr must be a number of at least 0, got lr=-1"),
        ({"trainer": {"learning_rate": 1}}, "there is no setting 'trainer.learning_rate'; there are lr, betas, eps, "),
        ({"trainer": {"weigth_decay": 1}},
         "there is no setting 'trainer.weigth_decay'; did you mean 'trainer.weight_decay'?"),
        ({"trainer": 3}, "trainer must be a mapping, got 3"),
        ({"trainer.lr": 3}, "a key of the file must be inside its section, without dots, got 'trainer.lr'"),
        ({"lr": 3}, "there is no setting 'lr'; did you mean 'trainer.lr'?"),
        ({"shedule": {}}, "there is no setting 'shedule'; did you mean 'schedule'?"),
        ({1: 2}, "there is no setting '1'; there are reward, steps, "),
        ({"policy": {"dtype": "int8"}}, "policy.dtype must be one of float32, bfloat16, float16, got 'int8'"),
        ({"policy": {"tokenizer": 3}}, "policy.tokenizer must be text or null, got 3; put it in quotes"),
        ({"data": {}}, "data: exactly one of task, path and dataset must be given, got none"),
        ({"data": {"task": "arithmetic", "num_digits": 0}}, "data.num_digits must be a whole number of at least 1"),
        ({"schedule": {}}, "schedule.groups_per_step must be given"),
        ({"schedule": {"groups_per_step": 4, "mini_batches": 3}}, "schedule.groups_per_step must be divisible by "),
        ({"steps": 0}, "steps must be a whole number of at least 1, got steps=0"),
        ({"algorithm": {"scale": "batch"}, "schedule": {"groups_per_step": 4, "stream": "mini_batch"}},
         "algorithm.scale=batch needs the scores of the whole batch"),
        ({"limits": {"rpm": "fast"}}, "limits.rpm must be a number or one of auto or null, got 'fast'"),
        ({"limits": {"max_attempts": 0}}, "limits.max_attempts must be a whole number of at least 1, got 0"),
        ({"limits": {"max_concurency": 1}},
         "there is no setting 'limits.max_concurency'; did you mean 'limits.max_concurrency'?"),
        ({"reward": 3}, "reward must be text or a mapping, got 3"),
        ({"reward": "gsm8"}, "reward must be a reward file ending in .yaml, 'file.py:name' or 'package.module:name', "
                             "got 'gsm8'; did you mean 'gsm8k'?"),
        ({"reward": {"model": "m"}}, "reward must have either `reward` or `rewards` inside, got the keys model"),
        ({"trainer": {"lr": {"reward": "gsm8k"}}}, "trainer.lr: a reward is not allowed here"),
    ],
)  # fmt: skip
def test_a_mistake_names_the_dotted_key_the_rule_and_the_value(
    changes: dict[Any, Any], problem: str, tmp_path: Path
) -> None:
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({**SMALL, **changes}))
    with pytest.raises(InvalidInput) as caught:
        load_run(tmp_path / "run.yaml")
    assert str(caught.value).startswith(f"{tmp_path / 'run.yaml'}: {problem}")


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("steps", "an override must be key=value, got 'steps'"),
        ("=3", "an override must be key=value, got '=3'"),
        ("trainer.lr=high", "trainer.lr must be a number, got 'high' (from the command line)"),
        ("min_batches=2",
         "there is no setting 'min_batches' (from the command line); did you mean 'schedule.mini_batches'?"),
        ("shedule.min_batches=2", "there is no setting 'shedule.min_batches' (from the command line); did you mean "
                                  "'schedule.mini_batches'?"),
        ("seed.x=1", "there is no setting 'seed.x' (from the command line); did you mean 'seed'?"),
        ("trainer=3", "trainer must be a mapping, got 3 (from the command line)"),
        ("generation.stop=[a", "the value of the override generation.stop must be valid YAML: "),
        ("reward.model=m", "reward must be a mapping to have 'model' inside, got 'judge.py:compute_score' (from the"),
        ("reward_kwargs..x=1", "the key of an override must have a name between its dots, got reward_kwargs..x"),
    ],
)  # fmt: skip
def test_a_mistake_of_the_command_line_says_so(override: str, problem: str, tmp_path: Path) -> None:
    assert complaint(tmp_path, override).startswith(problem)


def test_mistakes_are_told_together(tmp_path: Path) -> None:
    said = complaint(tmp_path, "trainer.lr=high", "sed=1", data={"path": 3}, schedule={}, limits={"rpm": 0})
    assert said.splitlines() == [
        "5 mistakes",
        "  - there is no setting 'sed' (from the command line); did you mean 'seed'?",
        "  - data.path must be text or a path or null, got 3; put it in quotes to make it text",
        "  - schedule.groups_per_step must be given",
        "  - limits.rpm must be a positive number or None, got 0",
        "  - trainer.lr must be a number, got 'high' (from the command line)",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "the file must exist"),
        ("[1]", "a run file must be a mapping, got [1]"),
        ("", "a run file must be a mapping, got None"),
        ("steps: 1\nsteps: 2\n", "the file must be valid YAML: 'steps' is given twice (line 2)"),
    ],
)
def test_a_file_that_is_none_is_refused(text: str | None, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidInput) as caught:
        load_run(path)
    assert str(caught.value) == f"{path}: {problem}"


def test_what_may_be_a_secret_is_not_shown(tmp_path: Path) -> None:
    said = complaint(tmp_path, "reward_kwargs.api_key.x=1", reward_kwargs={"api_key": "correct-horse"})
    assert "correct-horse" not in said
