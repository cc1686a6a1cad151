"""Whole runs that train adapters: generated with, saved, resumed, exported and refused."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_run import settings_in, write_run_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from rewardflow.checkpoint.model_state import SavedState
from rewardflow.cli.main import main
from rewardflow.errors import InvalidInput
from rewardflow.flow.schedule import Schedule
from rewardflow.policy.adapters import is_adapter
from rewardflow.policy.load_policy import load_policy
from rewardflow.runtime.local import EmbeddedRun, embedded
from rewardflow.runtime.memory_estimate import estimate_memory, estimate_rank_memory
from rewardflow.runtime.prepare import check_start
from rewardflow.settings.run_settings import (
    AlgorithmSettings,
    LoraSettings,
    PolicySettings,
    RunSettings,
    RuntimeSettings,
    TrainerSettings,
)

torch.set_num_threads(1)

LORA = PolicySettings(lora=LoraSettings(rank=4, alpha=8))


def adapters_of(run: EmbeddedRun) -> dict[str, Tensor]:
    named = run.policy.model.named_parameters()
    return {name: one.detach().clone() for name, one in named if is_adapter(name)}


def train(settings: RunSettings) -> dict[str, Tensor]:
    async def run() -> dict[str, Tensor]:
        async with embedded(settings) as opened:
            await opened.train()
            return adapters_of(opened)

    return asyncio.run(run())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of two steps."""
    folder = tmp_path_factory.mktemp("trained")
    write_run_file(folder)
    assert main(["train", str(folder / "run.yaml"), "--no-probe", *OVERRIDES, "steps=2"]) == 0
    return folder


OVERRIDES = [
    "policy.lora={rank: 4, alpha: 8}",
    "trainer.lr=1e-2",
    "algorithm.kl_coef=0.05",
    "checkpoint.every=1",
    "schedule.max_staleness=0",  # a run that ended has nothing generated for a further step
]


@pytest.fixture(scope="module")
def merged(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("merged") / "model"
    assert main(["export", str(trained / "run"), str(out)]) == 0
    return out


def test_a_run_whose_generator_has_its_own_copy_trains_the_adapters_of_one_that_shares_the_model(
    tmp_path: Path,
) -> None:
    """The copy has no adapters: it gets merged weights, with which it samples the same tokens."""
    found = []
    for place in ("colocated", "separate"):
        folder = tmp_path / place
        folder.mkdir()
        schedule = Schedule(groups_per_step=4, placement=place)
        settings = settings_in(folder, schedule=schedule, policy=LORA, steps=2, seed=3)
        found.append(train(settings))
    for name, one in found[0].items():
        torch.testing.assert_close(found[1][name], one, atol=1e-4, rtol=1e-3)


def test_a_run_resumed_from_adapters_alone_ends_with_those_of_a_run_that_was_not_cut(
    trained: Path, tmp_path: Path
) -> None:
    names = SavedState(trained / "run" / "checkpoints" / "step_000002" / "state").names
    assert names
    assert all("lora_" in name for name in names)
    resumed, longer = tmp_path / "resumed", tmp_path / "longer"
    shutil.copytree(trained, resumed)
    longer.mkdir()
    write_run_file(longer)
    assert main(["train", str(resumed / "run.yaml"), "--no-probe", "--resume", *OVERRIDES, "steps=3"]) == 0
    assert main(["train", str(longer / "run.yaml"), "--no-probe", *OVERRIDES, "steps=3"]) == 0
    ends = []
    for folder in (resumed, longer):
        out = tmp_path / f"of_{folder.name}"
        assert main(["export", str(folder / "run" / "checkpoints" / "step_000003"), str(out)]) == 0
        ends.append(AutoModelForCausalLM.from_pretrained(out).state_dict())
    assert all(torch.equal(one, ends[1][name]) for name, one in ends[0].items())


def test_an_exported_model_has_its_adapters_merged(merged: Path) -> None:
    base = load_policy(PolicySettings(), seed=0).model.state_dict()
    found = AutoModelForCausalLM.from_pretrained(merged).state_dict()
    assert found.keys() == base.keys()
    changed = {name.split(".")[-2] for name, one in found.items() if not torch.equal(one, base[name])}
    assert changed == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def test_exported_adapters_on_the_base_agree_with_the_exported_model(
    trained: Path, merged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import peft

    assert main(["export", str(trained / "run"), str(tmp_path / "adapters"), "--only-adapters"]) == 0
    assert "wrote the adapters of" in capsys.readouterr().out
    files = {path.name for path in (tmp_path / "adapters").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= files
    assert "model.safetensors" not in files
    whole = AutoModelForCausalLM.from_pretrained(merged)
    base = load_policy(PolicySettings(), seed=0).model
    read = peft.PeftModel.from_pretrained(base, tmp_path / "adapters")
    tokens = torch.arange(20).reshape(2, 10) % 9
    with torch.no_grad():
        torch.testing.assert_close(read(input_ids=tokens).logits, whole(input_ids=tokens).logits, atol=1e-4, rtol=1e-4)


def test_adapters_of_a_run_without_them_cannot_be_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run_file(tmp_path)
    assert main(["train", str(tmp_path / "run.yaml"), "--no-probe", "steps=1", "checkpoint.every=1"]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--only-adapters"]) == 2
    assert "only a run with policy.lora has adapters to export" in capsys.readouterr().err


def test_a_run_cannot_go_on_with_another_adapter_or_without_one(trained: Path) -> None:
    run_file = str(trained / "run.yaml")
    for changed in (["policy.lora={rank: 8, alpha: 8}"], ["policy.lora=null"]):
        with_change = [*OVERRIDES[1:], *changed]
        assert main(["train", run_file, "--no-probe", "--resume", *with_change, "steps=4"]) == 2


def test_megatron_refuses_adapters_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"policy.lora needs a back end .* choose trainer.backend=fsdp2"):
        settings_in(tmp_path, policy=LORA, trainer=TrainerSettings(backend="megatron"))


def test_without_peft_a_run_is_refused_before_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "peft" else find_spec(name))
    check_start(settings_in(tmp_path))
    with pytest.raises(InvalidInput, match=r"policy.lora needs peft: .* pip install .*\[lora\]"):
        check_start(settings_in(tmp_path, policy=LORA))


def test_memory_counts_what_trains_and_no_reference(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, policy=LORA, algorithm=AlgorithmSettings(kl_coef=0.1))
    policy = load_policy(PolicySettings(), seed=0)
    estimate = estimate_memory(settings, policy, torch.device("cpu"))
    assert estimate.num_parameters == 83_520
    assert 0 < estimate.num_trained < estimate.num_parameters
    assert estimate.weights == 4 * (estimate.num_parameters + estimate.num_trained)
    assert estimate.gradients == 4 * estimate.num_trained
    assert estimate.reference == 0
    spread = replace(
        settings, runtime=RuntimeSettings(kind="ray", ranks=2), trainer=TrainerSettings(autocast="bfloat16")
    )
    assert estimate_rank_memory(spread, policy).weights == (2 * estimate.num_parameters + 4 * estimate.num_trained) // 2
