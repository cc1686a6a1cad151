"""Gives a call the context variables of its caller: a thread runs inside the context, a process gets the values.

Always true: a reward function sees the `contextvars` of the code that submitted the rollout, wherever it runs; a
variable that it sets changes in its own call only.

A process gets a variable if it is an attribute of an importable module (not of `__main__`) and its value can be
pickled. All other variables are left out silently: a context is full of other libraries' private variables, and a
reward that does not read them must not fail because of them.
"""

from __future__ import annotations

import contextvars
import functools
import importlib
import logging
import pickle
import sys
import threading
from typing import TYPE_CHECKING, Any

from rewardflow.reward.code.current_call import Call, _current_call, enter_call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

logger = logging.getLogger(__name__)

Location = tuple[str, str]  # module, attribute
Outcome = tuple[Any, Exception | None]


def run_call(
    function: Callable[..., Any], kwargs: Mapping[str, Any], call: Call, context: contextvars.Context
) -> Outcome:
    """Runs the user's function as this call; returns its exception instead of raising it, so that a worker survives."""
    try:
        return context.copy().run(_enter_and_run, function, kwargs, call), None  # a copy: hedges share a context
    except BaseException as error:
        return None, as_ordinary_exception(error)


def as_ordinary_exception(error: BaseException) -> Exception:
    """Returns the exception, wrapped if it must not be raised in a coroutine.

    SystemExit and KeyboardInterrupt would end the program, CancelledError would look like a cancellation by the caller,
    and StopIteration cannot leave a coroutine.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    name, text = type(error).__name__, text_of(error)
    wrapped = RuntimeError(f"reward code raised {name}: {text}" if text else f"reward code raised {name}")
    wrapped.__cause__ = error
    return wrapped


def text_of(error: BaseException) -> str:
    """Returns the text of an exception, whatever its own `__str__` raises; its arguments may be nested too deep."""
    try:
        return str(error).strip()
    except BaseException as unprintable:
        if may_be_ctrl_c(unprintable):
            raise
        return f"its text cannot be made: {type(unprintable).__name__}"


def may_be_ctrl_c(error: BaseException) -> bool:
    """Whether a signal may have raised the error; Python handles signals in the main thread only."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


def pack_context(context: contextvars.Context) -> bytes:
    """Pickles the variables that another process can read; returns empty bytes if there are none."""
    entries: list[tuple[tuple[Location, ...], bytes]] = []
    for variable, value in context.items():
        if variable is _current_call:
            continue
        locations = _locations(variable)
        if locations:
            try:
                entries.append((locations, pickle.dumps(value, pickle.HIGHEST_PROTOCOL)))
            except Exception as error:
                logger.debug("context variable %s is left out: its value cannot be pickled: %s", variable.name, error)
    return pickle.dumps(entries, pickle.HIGHEST_PROTOCOL) if entries else b""


def unpack_context(packed: bytes, base: contextvars.Context) -> contextvars.Context:
    """Returns a copy of `base` with the packed variables set."""
    context = base.copy()
    if packed:
        for locations, value in pickle.loads(packed):
            try:
                context.run(_find_variable(locations).set, pickle.loads(value))
            except Exception as error:
                logger.debug("context variable %s is left out: %s", locations[0], error)
    return context


def _enter_and_run(function: Callable[..., Any], kwargs: Mapping[str, Any], call: Call) -> Any:
    enter_call(call)
    return function(**kwargs)


@functools.lru_cache(maxsize=1024)  # bounded, because a ContextVar cannot be referenced weakly
def _locations(variable: contextvars.ContextVar[Any]) -> tuple[Location, ...]:
    """Returns every module attribute that holds the variable: the other process may have imported any of them."""
    return tuple(
        (module_name, attribute)
        for module_name, module in list(sys.modules.items())
        if module_name != "__main__"
        for attribute, value in list(getattr(module, "__dict__", {}).items())
        if value is variable
    )


def _find_variable(locations: tuple[Location, ...]) -> contextvars.ContextVar[Any]:
    """Returns the variable in this process. Prefers a module that is already imported, because imports may be slow."""
    module_name, attribute = next((location for location in locations if location[0] in sys.modules), locations[0])
    variable = getattr(importlib.import_module(module_name), attribute)
    if not isinstance(variable, contextvars.ContextVar):
        raise TypeError(f"{module_name}.{attribute} is not a ContextVar here")
    return variable
