"""The rooms of the package, checked on the syntax.

No folder holds too many modules, a name means one thing, only a factory names back ends and engines, and no generator
only passes on what another yields. A checker takes source text, or names with their places, and returns complaints;
each is also tried on a sample that must fail.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "rewardflow"
MAX_MODULES = 20

# Words that several rooms use for the same thing of their own: what a reader expects under that name.
SAME_IN_EVERY_ROOM = frozenset(
    {
        "__init__",
        "settings",  # the settings of a room's own record
        "command",  # a command of several modules
        "closing_report",  # what such a command prints at its end
        "backend",  # what the table of back ends opens
        "factory",  # what the table of engines opens
        "engine",  # an engine
        "trainer",  # a trainer
    }
)
# Each module here is named after the thing that it commands, measures or configures.
NAMED_AFTER_OTHERS = ("cli", "bench", "settings.sections")

BACK_ENDS = frozenset({"fsdp2", "megatron"})
ENGINES = frozenset({"hf", "vllm"})
THEIR_CLASSES = frozenset({"TorchTrainer", "Fsdp2Trainer", "MegatronTrainer", "HFEngine", "VllmEngine"})
# The factories, what belongs to one back end or engine, and programs that compare them from outside.
MAY_NAME_THEM = (
    "train.backends",
    "train.fsdp2",
    "train.megatron",
    "generate.engines",
    "generate.hf",
    "generate.vllm",
    "bench.contenders",
    "adapters.verl",  # verl has engines of its own, of the same names
)


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield ".".join(path.relative_to(PACKAGE).with_suffix("").parts), path


def is_within(module: str, rooms: Iterable[str]) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


# -- the checkers --


def check_sizes(names: Iterable[str]) -> list[str]:
    """`names` are those of modules, dotted; an `__init__` is no module of its folder."""
    sizes = Counter(name.rpartition(".")[0] for name in names if not name.endswith("__init__"))
    return [f"{room} has {size} modules, more than {MAX_MODULES}" for room, size in sizes.items() if size > MAX_MODULES]


def check_one_meaning(places: Mapping[str, list[str]]) -> list[str]:
    return [f"{name} names {len(where)} things: {', '.join(where)}" for name, where in places.items() if len(where) > 1]


def module_names(names: Iterable[str]) -> dict[str, list[str]]:
    places: dict[str, list[str]] = defaultdict(list)
    for name in names:
        last = name.rpartition(".")[2]
        if last not in SAME_IN_EVERY_ROOM and not is_within(name, NAMED_AFTER_OTHERS):
            places[last].append(name)
    return places


def public_classes(source: str) -> list[str]:
    return [
        node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


def check_factories(source: str, module: str) -> list[str]:
    """Nobody else asks which back end or engine it has: neither by its name nor by its class."""
    if is_within(module, MAY_NAME_THEM):
        return []
    complaints = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            words = {
                one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)
            }
            complaints += [f"{module}:{node.lineno} compares with {word!r}" for word in words & (BACK_ENDS | ENGINES)]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
            names = {one.id for one in ast.walk(node.args[1]) if isinstance(one, ast.Name)}
            complaints += [f"{module}:{node.lineno} asks isinstance of {name}" for name in names & THEIR_CLASSES]
    return complaints


def check_no_relay(source: str, module: str) -> list[str]:
    """A generator that yields what another yields, and does nothing else, is a hop for the reader and for the clock."""
    return [
        f"{module}:{node.lineno} {node.name} only passes on what another generator yields"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _only_passes_on(node.body)
    ]


def _only_passes_on(body: list[ast.stmt]) -> bool:
    body = [one for one in body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
    match body:
        case [ast.AsyncWith(body=inner, items=[ast.withitem(context_expr=ast.Call(func=function))])]:
            return ast.unparse(function).endswith("aclosing") and _only_passes_on(inner)
        case [ast.AsyncFor(target=ast.Name(id=one), body=[ast.Expr(value=ast.Yield(value=ast.Name(id=other)))])]:
            return one == other
    return False


# -- the package as it is --


def test_no_room_is_too_full_to_walk() -> None:
    assert check_sizes(name for name, _ in modules()) == []


def test_a_modules_name_means_one_thing() -> None:
    assert check_one_meaning(module_names(name for name, _ in modules())) == []


def test_a_public_classs_name_means_one_thing() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for module, path in modules():
        for name in public_classes(path.read_text("utf-8")):
            places[name].append(module)
    assert check_one_meaning(places) == []


@pytest.mark.parametrize("check", [check_factories, check_no_relay], ids=lambda check: check.__name__)
def test_the_source_keeps_the_rule(check: object) -> None:
    assert callable(check)
    complaints = [line for module, path in modules() for line in check(path.read_text("utf-8"), module)]
    assert not complaints, "\n".join(complaints)


# -- the checkers can fail --


def test_a_room_of_21_modules_is_found_and_one_of_20_is_not() -> None:
    names = [f"flow.module_{number}" for number in range(MAX_MODULES)]
    assert check_sizes([*names, "flow.__init__"]) == []
    assert len(check_sizes([*names, "flow.one_more"])) == 1


def test_a_name_with_two_meanings_is_found() -> None:
    assert len(check_one_meaning(module_names(["flow.rows", "answers.rows", "cli.journal", "bench.journal"]))) == 1


def test_private_classes_may_share_a_name() -> None:
    assert public_classes("class Row: ...\nclass _Row: ...\ndef f():\n    class Inner: ...") == ["Row"]


@pytest.mark.parametrize(
    "source",
    [
        'if settings.trainer.backend == "megatron": ...',
        'x = generation.engine in ("vllm", "sglang")',
        "isinstance(trainer, TorchTrainer)",
        "isinstance(engine, HFEngine | VllmEngine)",
    ],
)
def test_a_question_that_only_a_factory_may_ask_is_found(source: str) -> None:
    assert check_factories(source, "runtime.open_run") != []
    assert check_factories(source, "train.backends") == []


def test_other_comparisons_are_allowed() -> None:
    assert check_factories('kind == "ray"\nisinstance(trainer, Trainer)', "runtime.open_run") == []


def test_a_generator_that_only_passes_on_is_found() -> None:
    relay = 'async def f():\n    "doc"\n    async for x in g():\n        yield x'
    closing = "async def f():\n    async with aclosing(g()) as s:\n        async for x in s:\n            yield x"
    worker = "async def f():\n    async for x in g():\n        yield h(x)"
    assert len(check_no_relay(relay, "flow.run")) == len(check_no_relay(closing, "flow.run")) == 1
    assert check_no_relay(worker, "flow.run") == []
