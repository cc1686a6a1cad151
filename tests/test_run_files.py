"""Every run file in docs/ and examples/ is one that `rewardflow train` takes, up to the model's weights.

Models are outlines: their configurations are in tests/model_configs, and models that are not there are the tiny one.
What needs a GPU, a cluster or vLLM itself is left out; the settings are those that a GPU would give.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml

from rewardflow.flow.device_thread import DeviceThread
from rewardflow.flow.records import Prompt
from rewardflow.generate.engines import engine_factory
from rewardflow.generate.prompt_encoder import PromptEncoder
from rewardflow.policy.load_policy import outline_policy
from rewardflow.policy.tiny import build_tokenizer
from rewardflow.runtime.local import make_engine
from rewardflow.runtime.on_ray.ray_runtime import rehearsed_here
from rewardflow.runtime.run_agent import build_agent
from rewardflow.settings.device_defaults import for_device
from rewardflow.settings.run_file import load_run
from rewardflow.settings.run_settings import PolicySettings, RunSettings
from rewardflow.train.backends import backend_of

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = Path(__file__).with_name("model_configs")
NEEDED = {"reward", "data", "schedule", "steps"}  # a block without these is a part of a run file, or of another one
PAGES = [ROOT / "README.md", ROOT / "README_zh.md", *sorted((ROOT / "docs").glob("*.md"))]


@dataclass(frozen=True, slots=True)
class RunFile:
    name: str
    text: str
    path: Path | None = None


def run_files() -> list[RunFile]:
    found = []
    for path in sorted((ROOT / "examples").rglob("*.yaml")):
        text = path.read_text("utf-8")
        if yaml.safe_load(text).keys() >= NEEDED:
            found.append(RunFile(str(path.relative_to(ROOT)), text, path))
    for page in PAGES:
        blocks = re.findall(r"^```yaml\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
        whole = [block for block in blocks if yaml.safe_load(block).keys() >= NEEDED]
        found += [RunFile(f"{page.name}-{number}", block) for number, block in enumerate(whole)]
    return found


RUN_FILES = run_files()
PARAMETERS = pytest.mark.parametrize("file", RUN_FILES, ids=[one.name for one in RUN_FILES])


def loaded(file: RunFile, folder: Path) -> RunSettings:
    path = file.path
    if path is None:
        path = folder / "run.yaml"
        path.write_text(file.text, "utf-8")
    return load_run(path)


def outline_of(policy: PolicySettings, folder: Path) -> PolicySettings:
    """Names a folder with the model's configuration and a tokenizer, and without weights."""
    name = policy.model.rpartition("/")[2]
    config = CONFIGS / f"{name}.json"
    if not config.is_file():
        return replace(policy, model="tiny", gguf_file=None, tokenizer=None)
    folder.mkdir(exist_ok=True)
    shutil.copy(config, folder / "config.json")
    build_tokenizer().save_pretrained(folder)
    return replace(policy, model=str(folder), tokenizer=None)


def test_run_files_are_found_in_documents_and_examples() -> None:
    names = {one.name for one in RUN_FILES}
    assert {"vllm.md-0", "quick_start.md-0", "README.md-0"} <= names
    assert {"examples/qwen2_5_7b_gsm8k/colocated.yaml", "examples/qwen2_5_1_5b_lora/run.yaml"} <= names


@PARAMETERS
def test_a_run_file_builds_its_trainer_and_encodes_prompts(file: RunFile, tmp_path: Path) -> None:
    settings = loaded(file, tmp_path)
    settings = replace(settings, policy=outline_of(settings.policy, tmp_path / "model"))
    settings = rehearsed_here(for_device(settings, "accelerator"))
    policy, thread = outline_policy(settings.policy), DeviceThread("rehearsal")
    backend_of(settings).rehearse(settings, policy, thread)
    encoder = PromptEncoder(policy.tokenizer, settings.generation)
    if engine_factory(settings).uses_policy_model:  # others need a package that is not here
        encoder = make_engine(settings, policy, thread).encoder
    assert encoder.fit([Prompt(uid="0", text="4 + 07=")]).kept


@pytest.mark.parametrize("file", [one for one in RUN_FILES if one.path is not None], ids=lambda one: one.name)
def test_the_reward_of_an_example_is_one_that_the_agent_takes(
    file: RunFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-nobody")
    assert file.path is not None
    build_agent(loaded(file, tmp_path), folder=file.path.parent, keeps=False)
