"""What the adapter uses of verl's inside is as it was tested. Reads verl's files, and imports nothing of verl."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import rewardflow.adapters.verl
from rewardflow.adapters.verl.contact import FINGERPRINTS, drift
from rewardflow.adapters.verl.launch.composition import verl_package

ADAPTER = Path(rewardflow.adapters.verl.__file__).parent

# Our classes, each with the contact in front of it, and verl's classes behind them.
BEHIND = {
    "training/trainer.py:RewardflowTrainer contact.py:TrainerContact": "trainer/ppo/v1/trainer_base.py:PPOTrainer",
    "training/replay_buffer.py:BoardReplayBuffer own_modes/sampler.py:_MeasuringBuffer "
    "own_modes/sampler.py:MeasuringReplayBuffer own_modes/sampler.py:MeasuringReplayBufferAsync "
    "contact.py:BufferContact": (
        "trainer/ppo/v1/replay_buffer.py:ReplayBuffer trainer/ppo/v1/replay_buffer.py:ReplayBufferAsync"
    ),
    "training/agent_loop.py:_ReportingWorker contact.py:AgentLoopContact": (
        "trainer/ppo/v1/agent_loop_tq.py:AgentLoopWorkerTQ experimental/agent_loop/agent_loop.py:AgentLoopWorker"
    ),
    "training/agent_loop.py:RewardflowAgentLoopManager": (
        "trainer/ppo/v1/agent_loop_tq.py:AgentLoopManagerTQ experimental/agent_loop/agent_loop.py:AgentLoopManager"
    ),
    "training/training_worker.py:StepwiseTrainingWorker": (
        "workers/engine_workers.py:TrainingWorker single_controller/base/worker.py:Worker"
    ),
    "training/training_worker.py:StepwiseActorRolloutRefWorker": (
        "workers/engine_workers.py:ActorRolloutRefWorker single_controller/base/worker.py:Worker"
    ),
    "reward_manager.py:RewardflowManager": "experimental/reward_loop/reward_manager/base.py:RewardManagerBase",
}


def test_every_piece_is_as_it_was_in_the_tested_release() -> None:
    changed = drift(verl_package())
    assert not changed, "read what verl changed, adapt, and give contact.py the fingerprints:\n" + "\n".join(changed)


def test_the_code_behind_every_private_name_of_the_contact_has_a_fingerprint() -> None:
    contact = ast.parse((ADAPTER / "contact.py").read_text())
    listed = {piece.rpartition(".")[2] for piece in FINGERPRINTS}
    set_by_listed = set[str]().union(*(attributes(found(verl_package(), piece)) for piece in FINGERPRINTS))
    names = {node.attr for node in ast.walk(contact) if isinstance(node, ast.Attribute)} | methods(contact)
    private = {name for name in names if is_private(name)} - {"_trainer"}  # the last is our own
    assert private <= listed | set_by_listed, sorted(private - listed - set_by_listed)
    assert {"_step_once", "_balance_batch", "_dispatch_info"} <= private  # the search finds what is there


@pytest.mark.parametrize(("ours", "verls"), BEHIND.items())
def test_our_classes_override_only_what_has_a_fingerprint(ours: str, verls: str) -> None:
    """A name of ours that verl's class has too would change verl without anybody's intention."""
    own, behind = Parts(ADAPTER, ours), Parts(verl_package(), verls)
    overridden = own.methods & (behind.methods | behind.attributes) - {"__init__"}
    unlisted = {
        name
        for name in overridden
        if not any(piece in FINGERPRINTS or f"{piece}.{name}" in FINGERPRINTS for piece in verls.split())
    }
    assert not unlisted
    shared = {name for name in own.attributes & (behind.methods | behind.attributes) if is_private(name)}
    assert not shared


def test_every_class_with_a_base_of_verls_is_in_the_table() -> None:
    derived = {
        f"{file.relative_to(ADAPTER).as_posix()}:{name}"
        for file in ADAPTER.rglob("*.py")
        for name in derived_from_verls(ast.parse(file.read_text()))
    }
    listed = {piece for ours in BEHIND for piece in ours.split()}
    assert derived <= listed
    assert len(derived) >= 8


def derived_from_verls(tree: ast.Module) -> set[str]:
    """Returns the classes with a base that is imported from verl."""
    imported = {
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "verl"
        for alias in node.names
    }
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        and any(name.id in imported for base in node.bases for name in ast.walk(base) if isinstance(name, ast.Name))
    }


class Parts:
    """The methods of some classes, and the attributes that they set."""

    def __init__(self, package: Path, pieces: str) -> None:
        classes = [found(package, piece) for piece in pieces.split()]
        self.methods = set[str]().union(*map(methods, classes))
        self.attributes = set[str]().union(*map(attributes, classes))


def found(package: Path, piece: str) -> ast.AST:
    """Returns the syntax of `file.py:Class.method`."""
    file, _, name = piece.partition(":")
    node: ast.AST = ast.parse((package / file).read_text())
    for part in name.split("."):
        node = next(child for child in ast.iter_child_nodes(node) if getattr(child, "name", None) == part)
    return node


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def methods(tree: ast.AST) -> set[str]:
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def attributes(tree: ast.AST) -> set[str]:
    """Returns the names of attributes that get a value."""
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
