"""The plans in the READMEs of the examples are those that `--check --memory` prints today."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from rewardflow.cli.main import main
from rewardflow.policy.tiny import build_tokenizer

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "tests" / "model_configs"
EXAMPLES = {"qwen2_5_7b_gsm8k": ("Qwen2.5-7B-Instruct", 80), "qwen2_5_1_5b_lora": ("Qwen2.5-1.5B-Instruct", 24)}
PLAN = re.compile(r"^`([\w.]+\.yaml)`\n\n```text\n(.*?)^```", re.DOTALL | re.MULTILINE)
PLANS = [
    (folder, file, told)
    for folder in EXAMPLES
    for file, told in PLAN.findall((ROOT / "examples" / folder / "README.md").read_text("utf-8"))
]


def test_every_run_file_has_its_plan() -> None:
    run_files = {
        (folder, path.name)
        for folder in EXAMPLES
        for path in (ROOT / "examples" / folder).glob("*.yaml")
        if path.name != "judge.yaml"
    }
    assert {(folder, file) for folder, file, _ in PLANS} == run_files


@pytest.mark.parametrize(("folder", "file", "told"), PLANS, ids=[f"{folder}/{file}" for folder, file, _ in PLANS])
def test_the_plan_of_an_example_fits_and_is_the_printed_one(
    folder: str,
    file: str,
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "118")
    config, gib = EXAMPLES[folder]
    shutil.copy(CONFIGS / f"{config}.json", tmp_path / "config.json")
    build_tokenizer().save_pretrained(tmp_path)
    run_file = ROOT / "examples" / folder / file
    assert main(["train", str(run_file), "--check", "--memory", str(gib), f"policy.model={tmp_path}"]) == 0
    assert told.split() == capsys.readouterr().out.split()
