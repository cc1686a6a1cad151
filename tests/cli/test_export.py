"""`rewardflow export`: what transformers loads is what was trained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from tiny_run import write_run_file
from transformers import AutoModelForCausalLM

from rewardflow.checkpoint.export_source import policy_settings_of
from rewardflow.checkpoint.manifest import read_manifest
from rewardflow.checkpoint.model_state import read_state
from rewardflow.cli.main import main
from rewardflow.policy.load_policy import Policy, load_policy
from rewardflow.settings.run_settings import PolicySettings

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of two steps, of which the first scored best."""
    folder = tmp_path_factory.mktemp("trained")
    write_run_file(folder)
    overrides = ["steps=2", "checkpoint.every=1", "checkpoint.keep_best_by=lr", "trainer.lr_schedule=linear"]
    assert main(["train", str(folder / "run.yaml"), "--no-probe", *overrides]) == 0
    return folder


def policy_of(folder: Path, step: int) -> Policy:
    policy = load_policy(PolicySettings(), seed=0)
    read_state(folder / "run" / "checkpoints" / f"step_{step:06d}" / "state", policy.model)
    return policy


def assert_same(found: Policy, expected: Policy) -> None:
    mine, theirs = found.model.state_dict(), expected.model.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    prompt = [{"role": "user", "content": "4 + 07="}]
    encoded = [one.tokenizer.apply_chat_template(prompt, tokenize=False) for one in (found, expected)]
    assert encoded[0] == encoded[1]
    assert found.tokenizer.encode(encoded[0]) == expected.tokenizer.encode(encoded[1])
    assert found.eos_ids == expected.eos_ids


def test_the_latest_checkpoint_of_a_run_loads_as_a_policy_and_with_transformers(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model"
    assert main(["export", str(trained / "run"), str(out)]) == 0
    assert "after 2 steps" in capsys.readouterr().out
    assert_same(load_policy(PolicySettings(model=str(out)), seed=1), policy_of(trained, step=2))
    assert AutoModelForCausalLM.from_pretrained(out).num_parameters() == 83_520
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_one_checkpoint_or_the_best_can_be_chosen(trained: Path, tmp_path: Path) -> None:
    assert main(["export", str(trained / "run" / "checkpoints" / "step_000001"), str(tmp_path / "one")]) == 0
    assert main(["export", str(trained / "run"), str(tmp_path / "best"), "--best"]) == 0
    for name in ("one", "best"):
        policy = load_policy(PolicySettings(model=str(tmp_path / name)), seed=1)
        assert_same(policy, policy_of(trained, step=1))


def test_weights_can_be_written_in_half_the_size(trained: Path, tmp_path: Path) -> None:
    assert main(["export", str(trained / "run"), str(tmp_path / "out"), "--dtype", "bfloat16"]) == 0
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("source", "target", "told"),
    [
        ("nowhere", "out", "must be a checkpoint or a run"),
        ("run", "full", "must be new or empty"),
        ("torn", "out", "is damaged"),
    ],
)
def test_a_mistake_is_told_and_nothing_is_written(
    trained: Path, tmp_path: Path, source: str, target: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "torn").mkdir()
    manifest = trained / "run" / "checkpoints" / "step_000002" / "checkpoint.json"
    (tmp_path / "torn" / manifest.name).write_bytes(manifest.read_bytes())
    place = trained if source == "run" else tmp_path
    assert main(["export", str(place / source), str(tmp_path / target)]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert len(list((tmp_path / "full").iterdir())) == 1


@pytest.fixture
def with_code(trained: Path, tmp_path: Path) -> Path:
    """A checkpoint whose manifest names a model with code of its own, and allows that code."""
    model = tmp_path / "with_code"
    model.mkdir()
    mark = tmp_path / "ran"
    (model / "own.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass Own: pass\n")
    auto_map = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}
    (model / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": auto_map}))
    (model / "tokenizer.json").write_text("{}")
    return copy_of_checkpoint(trained, tmp_path, {"policy.model": str(model), "policy.trust_remote_code": True})


def test_a_checkpoint_cannot_allow_code_that_comes_with_a_model(
    with_code: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(with_code), str(tmp_path / "out")]) == 2
    assert "a checkpoint cannot allow code that comes with a model" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_cannot_allow_a_kernel_from_the_hub(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = copy_of_checkpoint(trained, tmp_path, {"policy.attention": "somebody/kernel"})
    assert main(["export", str(checkpoint), str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "a checkpoint cannot allow code" in error
    assert "policy.attention" in error
    assert "'somebody/kernel'" in error
    trusting = policy_settings_of(read_manifest(checkpoint), trust_remote_code=True)
    assert (trusting.attention, trusting.trust_remote_code) == ("somebody/kernel", True)


@pytest.mark.parametrize(
    ("name", "value"),
    [("model", 3), ("model", None), ("lora", {"zz": 1}), ("lora", "x"), ("chat_template", 3), ("zz", 1)],
)
def test_a_manifest_whose_policy_has_values_of_wrong_types_is_an_error_and_no_traceback(
    trained: Path, tmp_path: Path, name: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = copy_of_checkpoint(trained, tmp_path, {f"policy.{name}": value})
    assert main(["export", str(checkpoint), str(tmp_path / "out")]) != 0
    error = capsys.readouterr().err
    assert "does not say of which policy it is" in error
    assert name in error


def copy_of_checkpoint(trained: Path, tmp_path: Path, settings: dict[str, object]) -> Path:
    """Copies a checkpoint, with these settings in its manifest."""
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(trained / "run" / "checkpoints" / "step_000002", checkpoint)
    file = checkpoint / "checkpoint.json"
    manifest = json.loads(file.read_bytes())
    manifest["settings"] |= settings
    file.write_text(json.dumps(manifest))
    return checkpoint


def test_the_user_can_allow_code_that_comes_with_a_model(with_code: Path) -> None:
    assert policy_settings_of(read_manifest(with_code), trust_remote_code=True).trust_remote_code
