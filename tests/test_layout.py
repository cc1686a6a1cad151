"""The shape of the source, checked on its syntax: imports point one way, functions stay short, every task has an owner.

A checker takes source text and returns complaints, so each is also tried on a snippet that must fail.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "rewardflow"
MAX_FUNCTION_LINES = 60


@dataclass(frozen=True, slots=True)
class Layer:
    """Modules that may import each other and everything below, and these third-party packages when imported."""

    names: frozenset[str]
    third_party: frozenset[str] = frozenset()


# What everybody imports, and what is written about a run.
FOUNDATION = Layer(frozenset({"clock", "errors", "extras", "notebook_table", "types"}))
OBSERVE = Layer(frozenset({"observe"}))
REWARD = Layer(frozenset({"reward"}), frozenset({"orjson"}))
FLOW = Layer(frozenset({"flow"}))  # the loop knows neither torch nor ray
FACE = Layer(frozenset({"__init__"}))  # `import rewardflow`: what users see; the library itself imports the parts
SETTINGS = Layer(frozenset({"settings"}), frozenset({"orjson"}))
# Only services/http/connection_pool imports aiohttp: it is itself imported when a client is made.
SERVICES = Layer(frozenset({"services"}), frozenset({"aiohttp", "orjson"}))
SHARED_AGENT = Layer(frozenset({"shared_agent"}), frozenset({"orjson"}))  # imports ray when it connects
SERVE = Layer(frozenset({"serve"}), frozenset({"aiohttp", "orjson"}))
ANSWERS = Layer(frozenset({"answers"}), frozenset({"orjson"}))
JUDGING = Layer(frozenset({"judging"}))  # figures about judges; makes no call itself
PLAN = Layer(frozenset({"plan"}))  # the simulator: the loop and the agent on a clock that jumps
DATA = Layer(frozenset({"data"}), frozenset({"orjson"}))
ALGO = Layer(frozenset({"algo"}), frozenset({"torch"}))
POLICY = Layer(frozenset({"policy"}), frozenset({"tokenizers", "torch", "transformers"}))
GENERATE = Layer(frozenset({"generate"}), frozenset({"safetensors", "torch", "transformers", "vllm"}))
# Only train/megatron imports megatron: it is not in the environment of the other tests.
TRAIN = Layer(frozenset({"train"}), frozenset({"megatron", "torch"}))
CHECKPOINT = Layer(frozenset({"checkpoint"}), frozenset({"safetensors", "torch"}))
RUNTIME = Layer(frozenset({"runtime"}))  # brings the parts together; imports the heavy ones when it runs
# Code that lives in others' processes, which have these; on import it loads them only in modules that others load.
ADAPTERS = Layer(
    frozenset({"adapters"}),
    frozenset({"accelerate", "omegaconf", "ray", "tensordict", "torch", "transfer_queue", "trl", "verl"}),
)
MOCK_JUDGE = Layer(frozenset({"mock_judge"}), frozenset({"aiohttp", "orjson"}))
DRAWING = Layer(frozenset({"drawing"}), frozenset({"orjson"}))
REPORT = Layer(frozenset({"report"}), frozenset({"orjson"}))
WATCH = Layer(frozenset({"watch"}), frozenset({"aiohttp"}))
BENCH = Layer(frozenset({"bench"}), frozenset({"orjson", "torch"}))
CLI = Layer(frozenset({"cli", "__main__"}), frozenset({"orjson", "rich"}))

# Lowest first: nothing imports from a layer after its own.
LAYERS = (
    FOUNDATION,
    OBSERVE,
    REWARD,
    FLOW,
    FACE,
    SETTINGS,
    SERVICES,
    SHARED_AGENT,
    SERVE,
    ANSWERS,
    JUDGING,
    PLAN,
    DATA,
    ALGO,
    POLICY,
    GENERATE,
    CHECKPOINT,
    TRAIN,
    RUNTIME,
    ADAPTERS,
    MOCK_JUDGE,
    DRAWING,
    REPORT,
    WATCH,
    BENCH,
    CLI,
)

# Never pulled in by `import rewardflow`.
HEAVY = frozenset({"aiohttp", "pyarrow", "ray", "rich", "torch", "transformers", "vllm", "yaml"})


# -- reading the source --


def source_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path) -> str:
    """Relative to the package, dotted: `reward.call`, `reward` for its `__init__`, `__init__` for the package's own."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


ImportNode = ast.Import | ast.ImportFrom


def all_imports(tree: ast.AST) -> Iterator[ImportNode]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))


def eager_imports(tree: ast.AST) -> Iterator[ImportNode]:
    """Those that importing the module executes: not in the body of a function, nor for type checkers only."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            yield from eager_imports(ast.Module(node.orelse, []))
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from eager_imports(node)


def imported_names(node: ImportNode) -> list[str]:
    """In full: `from a import b` gives a.b, because b may be a module."""
    prefix = f"{'.' * node.level}{node.module or ''}." if isinstance(node, ast.ImportFrom) else ""
    return [prefix + alias.name for alias in node.names]


def level_of(module: str) -> int | None:
    """The layer of a module named relative to the package."""
    return next((level for level, layer in enumerate(LAYERS) if module.split(".")[0] in layer.names), None)


def level_reached(dotted: str) -> int:
    """The layer that an imported name comes from; what is no module of ours comes from the public face."""
    level = level_of(dotted.removeprefix("rewardflow").removeprefix("."))
    return LAYERS.index(FACE) if level is None else level


# -- the checkers --


def check_imports_point_down(source: str, module: str) -> list[str]:
    own = level_of(module)
    if own is None:
        return [f"{module} belongs to no layer; declare it in LAYERS"]
    complaints = []
    for node in all_imports(ast.parse(source)):
        for name in imported_names(node):
            if name.startswith("."):
                complaints.append(f"{module}:{node.lineno} imports {name}; write it in full, from rewardflow on")
            elif name.split(".")[0] == "rewardflow" and level_reached(name) > own:
                complaints.append(f"{module}:{node.lineno} imports {name}, which is in a later layer")
    return complaints


def check_third_party(source: str, module: str) -> list[str]:
    level = level_of(module)
    allowed = {"rewardflow", "", *sys.stdlib_module_names, *(() if level is None else LAYERS[level].third_party)}
    return [
        f"{module}:{node.lineno} imports {name} when it is itself imported, which its layer may not"
        for node in eager_imports(ast.parse(source))
        for name in imported_names(node)
        if name.split(".")[0] not in allowed
    ]


def check_short_functions(source: str, module: str) -> list[str]:
    return [
        f"{module}:{node.lineno} {node.name} has {length} lines, more than {MAX_FUNCTION_LINES}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]


def check_no_print(source: str, module: str) -> list[str]:
    return [
        f"{module}:{node.lineno} calls print; log, or write through the command line's console"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "builtins.print")
    ]


def check_tasks_have_owners(source: str, module: str) -> list[str]:
    """Only a TaskGroup may start a task, and nobody may collect exceptions as values."""
    complaints = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        receiver, _, name = ast.unparse(node.func).rpartition(".")
        on_loop = receiver.removesuffix("()").endswith("loop")
        if name == "ensure_future" or (name == "create_task" and (receiver in ("", "asyncio") or on_loop)):
            complaints.append(f"{module}:{node.lineno} starts a task without an owner; use asyncio.TaskGroup")
        if name == "gather" and any(keyword.arg == "return_exceptions" for keyword in node.keywords):
            complaints.append(f"{module}:{node.lineno} gathers exceptions as values; use asyncio.TaskGroup")
    return complaints


def check_docstring(source: str, module: str) -> list[str]:
    return [] if ast.get_docstring(ast.parse(source)) else [f"{module} has no docstring"]


CHECKERS: tuple[Callable[[str, str], list[str]], ...] = (
    check_imports_point_down,
    check_third_party,
    check_short_functions,
    check_no_print,
    check_tasks_have_owners,
    check_docstring,
)


def names_in_memory_after(statement: str, names: frozenset[str]) -> frozenset[str]:
    """Which of these packages a fresh interpreter has loaded after the statement."""
    code = f"{statement}\nimport sys\nsys.stdout.write(' '.join(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return names.intersection(result.stdout.split())


# -- the source as it is --


@pytest.mark.parametrize("check", CHECKERS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_the_source_keeps_the_rule(check: Callable[[str, str], list[str]]) -> None:
    complaints = [line for path in source_files() for line in check(path.read_text("utf-8"), module_name(path))]
    assert not complaints, "\n".join(complaints)


def test_importing_rewardflow_loads_nothing_heavy() -> None:
    assert names_in_memory_after("import rewardflow", HEAVY) == set()


# -- the checkers can fail --


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("types", "from rewardflow.reward.code.current_call import Call"),
        ("types", "from rewardflow import reward"),
        ("clock", "def f():\n    import rewardflow.cli.main"),
        ("events", "if TYPE_CHECKING:\n    from rewardflow.reward.code.current_call import Call"),
        ("reward.code.current_call", "from rewardflow.bench import agent"),
        ("reward.code.current_call", "from .settings import AUTO"),
        ("reward.code.current_call", "import rewardflow as rf"),
        ("reward.code.current_call", "from rewardflow import Rollout"),
        ("__init__", "from rewardflow.cli.main import main"),
        ("bench.agent", "from rewardflow.cli import main"),
        ("undeclared", ""),
    ],
)
def test_an_import_that_points_up_is_found(module: str, source: str) -> None:
    assert len(check_imports_point_down(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("types", "from rewardflow.errors import InvalidInput"),
        ("reward.code.current_call", "from rewardflow.reward import settings\nfrom rewardflow import clock"),
        ("reward", "from rewardflow.reward.code.current_call import Call"),
        ("__init__", "from rewardflow.reward.code.current_call import Call\nfrom rewardflow.types import Rollout"),
        ("bench.agent", "import rewardflow as rf"),
        ("cli.main", "from rewardflow.bench import agent\nimport rich"),
    ],
)
def test_an_import_that_points_down_is_allowed(module: str, source: str) -> None:
    assert check_imports_point_down(source, module) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("types", "import orjson"),
        ("reward.code.current_call", "import torch.nn"),
        ("reward.code.current_call", "from aiohttp import ClientSession"),
        ("reward.code.current_call", "try:\n    import ray\nexcept ImportError:\n    ray = None"),
        ("reward.code.current_call", "class A:\n    import transformers"),
        ("reward.code.current_call", "if TYPE_CHECKING:\n    import torch\nelse:\n    import ray"),
        ("bench.agent", "import rich"),
    ],
)
def test_a_third_party_import_that_the_layer_may_not_have_is_found(module: str, source: str) -> None:
    assert len(check_third_party(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("reward.code.current_call", "import orjson, asyncio\nfrom rewardflow import types"),
        ("reward.code.current_call", "def f():\n    import aiohttp"),
        ("reward.code.current_call", "if TYPE_CHECKING:\n    import aiohttp"),
        ("cli.main", "from rich.console import Console"),
    ],
)
def test_a_light_or_late_third_party_import_is_allowed(module: str, source: str) -> None:
    assert check_third_party(source, module) == []


def test_a_function_of_61_lines_is_found_and_one_of_60_is_not() -> None:
    assert check_short_functions("async def f():\n" + "    x = 1\n" * 60, "clock") != []
    assert check_short_functions("class A:\n    def f(self):\n" + "        x = 1\n" * 59, "clock") == []


def test_a_print_is_found_and_a_console_is_not() -> None:
    assert check_no_print("def f():\n    print('x')", "clock") != []
    assert check_no_print("console.print('x')", "clock") == []


@pytest.mark.parametrize(
    "source",
    [
        "asyncio.create_task(f())",
        "create_task(f())",
        "asyncio.ensure_future(f())",
        "loop.create_task(f())",
        "self._loop.create_task(f())",
        "asyncio.get_running_loop().create_task(f())",
        "await asyncio.gather(f(), return_exceptions=True)",
    ],
)
def test_a_task_without_an_owner_is_found(source: str) -> None:
    assert len(check_tasks_have_owners(source, "clock")) == 1


def test_a_task_of_a_group_is_allowed() -> None:
    assert check_tasks_have_owners("tasks.create_task(f())\nself._tasks.create_task(f())", "clock") == []


def test_a_missing_docstring_is_found() -> None:
    assert check_docstring("import os", "clock") != []
    assert check_docstring('"""What it is."""\nimport os', "clock") == []


def test_a_package_in_memory_is_seen() -> None:
    assert names_in_memory_after("import json, rich", frozenset({"json", "rich", "torch"})) == {"json", "rich"}
