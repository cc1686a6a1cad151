"""The private names of verl: one module holds them, and has a public name for each."""

from __future__ import annotations

import ast
import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rewardflow.adapters.verl import contact
from rewardflow.adapters.verl.contact import (
    FINGERPRINTS,
    AgentLoopContact,
    BufferContact,
    TrainerContact,
    TrainerOfSampler,
    drift,
    num_ranks,
)
from rewardflow.errors import FlowError

CONTACT = Path(contact.__file__)
ADAPTER = CONTACT.parent

# -- who may name what -----------------------------------------------------------------------------------------------


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def used(tree: ast.AST) -> Iterator[str]:
    """Yields every name that is read, called, defined or imported, and texts that `getattr` could take."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Attribute(attr=name) | ast.Name(id=name):
                yield name
            case ast.alias(name=name):
                yield from name.split(".")
            case ast.ImportFrom(module=str(name)):
                yield from name.split(".")
            case ast.Constant(value=str(text)) if text.isidentifier():
                yield text


def defined(tree: ast.AST) -> set[str]:
    """Returns the names of functions, classes and variables, and of attributes that get a value."""
    return {
        name
        for node in ast.walk(tree)
        for name in (
            [node.name]
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            else [node.attr]
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            else [node.id]
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            else []
        )
    }


VERLS = {
    name
    for name in used(ast.parse(CONTACT.read_text()))
    if is_private(name) and name not in {"_Verls", "_trainer", "_TRAINER", "_BUFFER", "_LOOP", "_WORKER"}
}
FOREIGN = {"_Environ"}  # a private name of Python's own library, for a type


def complaints(code: str) -> list[str]:
    """Returns the private names in this code that are verl's, or that this code does not define itself."""
    tree = ast.parse(code)
    private = {name for name in used(tree) if is_private(name)}
    return sorted(private & VERLS | private - defined(tree) - FOREIGN)


def other_modules() -> list[Path]:
    return sorted(file for file in ADAPTER.rglob("*.py") if file != CONTACT)


@pytest.mark.parametrize("file", other_modules(), ids=lambda file: str(file.relative_to(ADAPTER)))
def test_no_other_module_of_the_adapter_names_a_private_name_of_verl(file: Path) -> None:
    assert not complaints(file.read_text())


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("class A(B):\n    def _step_once(self): ...", "_step_once"),
        ("class A(B):\n    def step(self): return super()._anything()", "_anything"),
        ("def f(trainer): return trainer._anything", "_anything"),
        ("class A(B):\n    def step(self): return self._anything()", "_anything"),
        ("def f(trainer): return getattr(trainer, '_anything')", "_anything"),
        ("from verl.trainer._inner import step", "_inner"),
        ("from verl.trainer import _inner", "_inner"),
        ("import verl._inner", "_inner"),
    ],
)
def test_a_private_name_of_verl_elsewhere_is_found(code: str, found: str) -> None:
    assert complaints(code) == [found]


def test_the_names_that_are_looked_for_are_those_of_the_contact() -> None:
    assert {"_step_once", "_balance_batch", "_dispatch_info", "_clear_groups", "_run_prompt"} <= VERLS


def test_in_a_package_without_any_of_it_every_piece_is_gone(tmp_path: Path) -> None:
    assert len(drift(tmp_path)) == len(FINGERPRINTS)


# -- in front of verl's classes --------------------------------------------------------------------------------------


class Recorder:
    """Stands in for a class of verl's: every private method notes its call and returns its own name."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def note(self, name: str, *args: Any, **kwargs: Any) -> str:
        self.calls.append((name, args, kwargs))
        return name


def noting(name: str, *, is_async: bool = False) -> Any:
    def call(self: Recorder, *args: Any, **kwargs: Any) -> str:
        return self.note(name, *args, **kwargs)

    async def call_async(self: Recorder, *args: Any, **kwargs: Any) -> str:
        return self.note(name, *args, **kwargs)

    return call_async if is_async else call


HOOKS_OF_TRAINER = {
    "_build_replay_buffer": ("make_buffer", ()),
    "_init_resource_pool_mgr": ("choose_workers", ()),
    "_validate": ("validate", ()),
    "_val_metrics_update": ("metrics_of_validation", ([], [], {}, [], {})),
    "_save_checkpoint": ("save", ()),
    "_consume_sync_metrics": ("metrics_of_step", ()),
    "_step_once": ("take_through_stages", ({}, {}, 8)),
}
HOOKS_OF_BUFFER = {
    "_sync_metadata_from_transfer_queue": ("look", ()),
    "_wait_for_next_poll": ("wait_before_next_look", ("train", 1.0)),
    "_terminal_eviction_reasons": ("reasons_to_evict", (3, "train")),
    "_evict_terminal_groups": ("evict", (3, "train", (set(), set(), set(), Counter()))),
    "_clear_groups": ("clear", ("train", {"a"})),
    "_materialize_batch": ("batch_of_prompts", ("train", ["a"], {})),
}
STAGES = {
    "next_prompts": "_next_train_batch",
    "generate": "_submit_batch_to_rollout",
    "balanced": "_balance_batch",
    "take_old_log_probs": "_compute_old_log_prob",
    "take_ref_log_probs": "_compute_ref_log_prob",
    "take_values": "_compute_values",
    "with_advantages": "_compute_advantage",
    "train_critic": "_update_critic",
    "train_actor": "_update_actor",
}
HOOKS_OF_LOOP = {
    "_run_prompt": ("run_group", ({"uid": "a"}, {}, {}, False)),
    "_run_agent_loop": ("run_rollout", ({}, {})),
    "_agent_loop_postprocess": ("judge_and_store", ([], True)),
    "_compute_score": ("score", ([], {})),
}
HOOKS = [
    *((TrainerContact, verl_name, *hook) for verl_name, hook in HOOKS_OF_TRAINER.items()),
    *((BufferContact, verl_name, *hook) for verl_name, hook in HOOKS_OF_BUFFER.items()),
    *((AgentLoopContact, verl_name, *hook) for verl_name, hook in HOOKS_OF_LOOP.items()),
]


@pytest.mark.parametrize(("base", "private", "public", "args"), HOOKS, ids=[hook[1] for hook in HOOKS])
def test_verls_call_reaches_our_method_and_ours_reaches_verls(
    base: type, private: str, public: str, args: tuple[Any, ...]
) -> None:
    is_async = base is AgentLoopContact
    behind: Any = type("Verls", (Recorder,), {private: noting(private, is_async=is_async)})
    untouched = type("Untouched", (base, behind), {})()
    called(untouched, private, args)
    assert [name for name, _, _ in untouched.calls] == [private]

    changed = type("Changed", (base, behind), {public: noting(public, is_async=is_async)})()
    called(changed, private, args)
    assert [name for name, _, _ in changed.calls] == [public]


def called(thing: Any, name: str, args: tuple[Any, ...]) -> None:
    answer = getattr(thing, name)(*args)
    if asyncio.iscoroutine(answer):
        asyncio.run(answer)


@pytest.mark.parametrize(("public", "private"), STAGES.items())
def test_a_stage_of_verls_has_a_public_name(public: str, private: str) -> None:
    trainer: Any = type("Trainer", (TrainerContact, Recorder), {private: noting(private)})()
    batch, metrics = object(), {}
    takes_metrics = public not in ("next_prompts", "generate")
    getattr(trainer, public)(batch, *([metrics] if takes_metrics else []))
    assert trainer.calls == [(private, (batch,), {"metrics": metrics} if takes_metrics else {})]


# -- a sampler's trainer ---------------------------------------------------------------------------------------------


class Trainer:
    """As verl's: it reads its data after it made the sampler."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(trainer=SimpleNamespace(total_epochs=2))

    def refill(self, count: int) -> None: ...

    def _resolve_filter_groups_metric(self) -> str:
        return "acc"

    def read_data(self) -> None:
        self.steps_per_epoch, self.total_training_steps, self.val_dataloader = 10, 100, [1, 2, 3]


def test_a_sampler_finds_its_trainer_by_the_method_it_is_given() -> None:
    trainer = Trainer()
    seen = TrainerOfSampler.found_by(trainer.refill)
    assert (seen.config, seen.filter_metric) == (trainer.config, "acc")
    trainer.read_data()
    assert (seen.last_step, seen.num_validation_batches) == (20, 3)
    trainer.total_training_steps = 7
    assert seen.last_step == 7
    with pytest.raises(FlowError, match="must pass one of its methods"):
        TrainerOfSampler.found_by(lambda count: None)


def test_ranks_are_counted_from_verls_own_table() -> None:
    assert num_ranks(SimpleNamespace(_dispatch_info={"actor": [0, 0, 1, 1]}), "actor") == 2
