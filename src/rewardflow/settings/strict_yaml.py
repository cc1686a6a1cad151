"""Reads YAML, a file or a text, as plain data.

Always true: only plain values come out (no tag builds an object, nothing is expanded from the environment); a key that
stands twice is an error, where YAML would keep the last in silence; 1e-3 is a number, where YAML 1.1 sees text. No
error quotes a line of the file, which may hold a key.
"""

from __future__ import annotations

import functools
import importlib
import re
from pathlib import Path
from typing import Any

from rewardflow.errors import InvalidInput
from rewardflow.observe.redact import redact
from rewardflow.settings.typed_values import may_be_secret

_FLOAT_WITHOUT_DOT = re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+$")


def read_yaml(path: Path) -> Any:
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise InvalidInput("the file must exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the file must be readable text in UTF-8: {error}") from error
    return parse_yaml(text)


def parse_yaml(text: str, *, what: str = "the file") -> Any:
    """The same of a text; `what` it is is for messages."""
    yaml, loader = _yaml_and_loader()
    try:
        return yaml.load(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        problem = _told(error, text)
    except yaml.reader.ReaderError as error:
        problem = f"{error.reason} (character {error.position + 1})"
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = f"a value cannot be read ({type(error).__name__})"
    raise InvalidInput(f"{what} must be valid YAML: {problem}")  # not from the error, which quotes the line


def _told(error: Any, text: str) -> str:
    """What is wrong and where; without its words if they may be from the value of a key."""
    if error.problem_mark is None:
        return redact(str(error.problem))
    number = error.problem_mark.line
    line = text.splitlines()[number] if number < len(text.splitlines()) else ""
    problem = "this line cannot be read" if may_be_secret(line) else redact(str(error.problem))
    return f"{problem} (line {number + 1})"


@functools.cache
def _yaml_and_loader() -> tuple[Any, Any]:
    """Made late, because the class that it builds on is in a package that is imported late."""
    yaml = importlib.import_module("yaml")

    def construct_mapping(loader: Any, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key.value, str):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a name", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} stands twice", key.start_mark)
            seen.add(key.value)
        return yaml.SafeLoader.construct_mapping(loader, node, deep)

    loader = type("StrictLoader", (yaml.SafeLoader,), {"construct_mapping": construct_mapping})
    loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT_WITHOUT_DOT, list("-+0123456789"))  # type: ignore[attr-defined]
    return yaml, loader
