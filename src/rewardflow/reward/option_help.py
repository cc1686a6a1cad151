"""Shows the options of the agent where people look for them: in `help()`, in signatures and in `--help` of commands.

Always true: an option's meaning stands once, below its key in `reward/settings.py`; its default comes from the settings
records.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import textwrap
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from rewardflow.reward.settings import AgentOptions, AgentSettings, LimitOptions, LimitSettings

F = TypeVar("F", bound=Callable[..., Any])


@functools.cache
def option_meanings() -> Mapping[str, str]:
    """Returns the text below each key; none if the package was installed without its source."""
    found: dict[str, str] = {}
    for record in (LimitOptions, AgentOptions):
        try:
            source = textwrap.dedent(inspect.getsource(record))
        except OSError:
            continue
        (definition,) = ast.parse(source).body
        assert isinstance(definition, ast.ClassDef)
        for key, text in zip(definition.body, definition.body[1:], strict=False):
            match key, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(meaning))):
                    found[name] = meaning
    return found


def with_options_in_help(function: F) -> F:
    """Replaces `**options` in the function's signature by every option, and lists their meanings in its docstring."""
    records = (LimitSettings, AgentSettings)
    hints = {name: hint for record in records for name, hint in typing.get_type_hints(record).items()}
    options = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for record in records
        for field in dataclasses.fields(record)
    ]
    signature = inspect.signature(function)
    own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    function.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    lines = [f"{one.name}={one.default!r}: {option_meanings().get(one.name, '')}" for one in options]
    function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nOptions of the agent:\n\n" + "\n".join(lines)
    return function
