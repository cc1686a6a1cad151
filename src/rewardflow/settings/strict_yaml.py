"""Reads YAML from a file or a text as plain data.

Always true: the result holds only plain values (no tag builds an object, nothing is expanded from the environment); a
repeated key is an error, although YAML would silently keep the last; 1e-3 is a number, although YAML 1.1 reads it as
text. No error quotes a line of the file, because the line may hold a secret.
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
    """Parses a text as `read_yaml` parses a file. `what` names the text in errors."""
    yaml, loader = _yaml_and_loader()
    try:
        return yaml.load(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        problem = _problem_and_line(error, text)
    except yaml.reader.ReaderError as error:
        problem = f"{error.reason} (character {error.position + 1})"
    except (yaml.YAMLError, ValueError, RecursionError) as error:
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

    def construct_mapping(loader: Any, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key.value, str):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a name", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            seen.add(key.value)
        return yaml.SafeLoader.construct_mapping(loader, node, deep)

    loader = type("StrictLoader", (yaml.SafeLoader,), {"construct_mapping": construct_mapping})
    loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT_WITHOUT_DOT, list("-+0123456789"))  # type: ignore[attr-defined]
    return yaml, loader
