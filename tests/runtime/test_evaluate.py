"""Where an evaluation generates, and under which name it asks a shared agent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_run import settings_in

from rewardflow.checkpoint.fingerprint import fingerprint
from rewardflow.checkpoint.manifest import write_manifest
from rewardflow.errors import InvalidInput
from rewardflow.runtime.evaluate import find_model, settings_of
from rewardflow.runtime.local import LocalRuntime
from rewardflow.runtime.on_ray.ray_runtime import RayRuntime
from rewardflow.runtime.open_run import runtime_of
from rewardflow.settings.run_settings import DataSettings, RuntimeSettings, SharedAgentSettings, ValidationSettings


def test_an_evaluation_generates_where_the_run_would(tmp_path: Path) -> None:
    validation = ValidationSettings(data=DataSettings(task="copy_digits", limit=2))
    here = settings_in(tmp_path, validation=validation)
    assert isinstance(runtime_of(here, trains=False), LocalRuntime)
    on_ray = settings_in(tmp_path, validation=validation, runtime=RuntimeSettings(kind="ray", ranks=2))
    assert isinstance(runtime_of(on_ray, trains=False), RayRuntime)


def test_a_shared_agent_takes_an_evaluation_for_a_run_of_its_own(tmp_path: Path) -> None:
    """With the run's name its verdicts would be replayed for training, and the other way round."""
    limits = {"journal": str(tmp_path / "shared.db"), "rpm": 60}
    settings = settings_in(tmp_path, run_dir=tmp_path / "run", limits=limits)
    model = find_model(settings, None)
    own = settings_of(settings, model, tmp_path / "out")
    assert (own.run_dir, dict(own.limits)) == (tmp_path / "out", {"rpm": 60})
    shared = settings_in(
        tmp_path, run_dir=tmp_path / "run", limits=limits, shared_agent=SharedAgentSettings(name="judge", run="job")
    )
    asked = settings_of(shared, model, tmp_path / "out")
    assert asked.shared_agent.run == "job, evaluation of model"
    assert dict(asked.limits) == limits  # all who share an agent describe it alike


def test_a_checkpoint_cannot_allow_an_evaluation_to_run_code_that_comes_with_a_model(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    trusting = replace(settings, policy=replace(settings.policy, trust_remote_code=True))
    write_manifest(tmp_path, step=1, settings=fingerprint(trusting), score=None)
    with pytest.raises(InvalidInput, match="a checkpoint cannot allow code that comes with a model"):
        find_model(settings, str(tmp_path))
    assert find_model(trusting, str(tmp_path)).policy.trust_remote_code
