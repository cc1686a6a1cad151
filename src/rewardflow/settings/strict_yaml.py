"""Reads YAML from a file or a text as plain data.

Always true: the result holds only plain values (no tag builds an object, nothing is expanded from the environment); a
repeated key is an error, although YAML would silently keep the last; 1e-3 is a number and 1:30 a text, as in YAML 1.2,
although YAML 1.1 reads the one as text and the other as 90. The result, written out, is hardly larger than the file and
at most 100 levels deep, whatever its aliases do. No error quotes a line of the file, because it may hold a secret.
"""

from __future__ import annotations

import functools
import importlib
import re
from pathlib import Path
from typing import Any

from rewardflow.errors import InvalidInput
from rewardflow.observe.redact import redact, register_settings
from rewardflow.settings.typed_values import may_be_secret

_FLOAT_WITHOUT_DOT = re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+$")
_BASE_60 = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-9]+)+(?:\.[0-9_]*)?$")
_FLOAT, _TEXT = "tag:yaml.org,2002:float", "tag:yaml.org,2002:str"
_MAX_DEPTH = 100
_MAX_REPEATED_CHARS = 1_000_000  # a collection counts as one character
# What PyYAML lets escape for a value that does not fit its tag, such as `!!bool maybe` or the character "\\UFFFFFFFF".
_UNFIT = (ValueError, ArithmeticError, LookupError, AttributeError, TypeError)
_TOO_DEEP = f"values must be nested at most {_MAX_DEPTH} levels deep"
_TOO_MUCH = f"aliases must repeat at most {_MAX_REPEATED_CHARS:,} characters in all"


def read_yaml(path: Path) -> Any:
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise InvalidInput("the file must exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the file must be readable text in UTF-8: {error}") from error
    contents = parse_yaml(text)
    if isinstance(contents, dict):
        register_settings(contents)  # before any message can quote them
    return contents


def parse_yaml(text: str, *, what: str = "the file") -> Any:
    """Parses a text as `read_yaml` parses a file. `what` names the text in errors."""
    yaml, loader = _yaml_and_loader()
    try:
        return yaml.load(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        problem = _problem_and_line(error, text)
    except yaml.reader.ReaderError as error:
        problem = f"{error.reason} (character {error.position + 1})"
    except (yaml.YAMLError, RecursionError, *_UNFIT) as error:
        problem = f"a value cannot be read ({type(error).__name__})"
    raise InvalidInput(f"{what} must be valid YAML: {problem}")  # without `from`: the YAML error quotes the line


def _problem_and_line(error: Any, text: str) -> str:
    """Says what is wrong and in which line. Omits YAML's own words where they may quote a secret."""
    if error.problem_mark is None:
        return redact(str(error.problem))
    number = error.problem_mark.line
    line = text.splitlines()[number] if number < len(text.splitlines()) else ""
    problem = "this line cannot be read" if may_be_secret(line) else redact(str(error.problem))
    return f"{problem} (line {number + 1})"


@functools.cache
def _yaml_and_loader() -> tuple[Any, Any]:
    """Imports YAML and builds the strict loader on first use, because most imports of this package read no YAML."""
    yaml = importlib.import_module("yaml")
    methods = {**_bounded_composer(yaml), **_strict_constructor(yaml)}
    loader: Any = type("StrictLoader", (yaml.SafeLoader,), methods)
    first_resolvers = {first: list(entries) for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()}
    for first in "-+0123456789":  # the first entry that matches decides
        first_resolvers.setdefault(first, []).insert(0, (_TEXT, _BASE_60))
    loader.yaml_implicit_resolvers = first_resolvers
    loader.add_implicit_resolver(_FLOAT, _FLOAT_WITHOUT_DOT, list("-+0123456789"))
    return yaml, loader


def _bounded_composer(yaml: Any) -> dict[str, Any]:
    """Returns methods of a loader that bound what the aliases of a document expand to, before anything is built."""

    def __init__(loader: Any, stream: Any) -> None:
        yaml.SafeLoader.__init__(loader, stream)
        loader.num_open = 0
        loader.num_written_chars = 0
        loader.sizes = {}  # of each complete node, with its aliases written out: characters and levels

    def compose_node(loader: Any, parent: Any, index: Any) -> Any:
        mark = loader.peek_event().start_mark
        is_alias = loader.check_event(yaml.AliasEvent)
        loader.num_open += 1
        if loader.num_open > _MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, _TOO_DEEP, mark)
        node = yaml.SafeLoader.compose_node(loader, parent, index)
        loader.num_open -= 1
        if is_alias and node not in loader.sizes:
            raise yaml.composer.ComposerError(None, None, "a value must not contain an alias of itself", mark)
        if not is_alias:
            loader.num_written_chars += len(node.value) if isinstance(node, yaml.ScalarNode) else 1
            loader.sizes[node] = _size(node, loader.sizes)
        num_chars, num_levels = loader.sizes[node]
        if num_chars > loader.num_written_chars + _MAX_REPEATED_CHARS:
            raise yaml.composer.ComposerError(None, None, _TOO_MUCH, mark)
        if num_levels > _MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, _TOO_DEEP, mark)
        return node

    return {"__init__": __init__, "compose_node": compose_node}


def _size(node: Any, sizes: dict[Any, tuple[int, int]]) -> tuple[int, int]:
    """Returns the characters and the levels of a node whose children are complete."""
    if isinstance(node.value, str):
        return len(node.value), 1
    parts = [part for child in node.value for part in (child if isinstance(child, tuple) else (child,))]
    inside = [sizes[part] for part in parts]
    return 1 + sum(num for num, _ in inside), 1 + max((levels for _, levels in inside), default=0)


def _strict_constructor(yaml: Any) -> dict[str, Any]:
    """Returns methods of a loader that refuse repeated keys, and values that do not fit their type."""

    def construct_mapping(loader: Any, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key.value, str):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a name", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            seen.add(key.value)
        return yaml.SafeLoader.construct_mapping(loader, node, deep)

    def construct_object(loader: Any, node: Any, deep: bool = False) -> Any:
        try:
            return yaml.SafeLoader.construct_object(loader, node, deep)
        except _UNFIT as error:
            problem = f"a value cannot be read ({type(error).__name__})"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)

    return {"construct_mapping": construct_mapping, "construct_object": construct_object}
