from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from rewardflow.reward.code.context_transfer import as_ordinary_exception, pack_context, run_call, unpack_context
from rewardflow.reward.code.current_call import Call, current_call, enter_call

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType


@pytest.fixture(scope="module")
def tenancy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """An importable module that holds a context variable, as a user's would."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "tenancy_sample.py").write_text(
        "import contextvars\ntenant = contextvars.ContextVar('tenant', default='nobody')\n"
    )
    sys.path.insert(0, str(folder))
    import tenancy_sample  # type: ignore[import-not-found]

    yield tenancy_sample
    sys.path.remove(str(folder))


def context_with(variable: contextvars.ContextVar[object], value: object) -> contextvars.Context:
    context = contextvars.Context()
    context.run(variable.set, value)
    return context


def test_a_variable_of_a_module_travels_by_value(tenancy: ModuleType) -> None:
    arrived = unpack_context(pack_context(context_with(tenancy.tenant, {"id": 7})), contextvars.Context())

    assert arrived[tenancy.tenant] == {"id": 7}


def test_an_empty_context_packs_to_nothing() -> None:
    assert pack_context(contextvars.Context()) == b""


def test_a_variable_that_no_module_holds_stays_behind() -> None:
    assert pack_context(context_with(contextvars.ContextVar("hidden"), 1)) == b""


def test_a_value_that_cannot_be_pickled_stays_behind(tenancy: ModuleType) -> None:
    assert pack_context(context_with(tenancy.tenant, threading.Lock())) == b""


def test_the_current_call_stays_behind() -> None:
    context = contextvars.Context()
    context.run(enter_call, Call(()))

    assert pack_context(context) == b""


def test_what_the_receiving_side_had_set_is_kept(tenancy: ModuleType) -> None:
    own: contextvars.ContextVar[str] = contextvars.ContextVar("own")
    base = context_with(own, "built")  # type: ignore[arg-type]

    arrived = unpack_context(pack_context(context_with(tenancy.tenant, "acme")), base)

    assert (arrived[own], arrived[tenancy.tenant]) == ("built", "acme")
    assert tenancy.tenant not in base


def test_a_variable_is_found_by_importing_its_module_in_a_fresh_interpreter(
    tenancy: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "packed").write_bytes(pack_context(context_with(tenancy.tenant, "acme")))
    script = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "import contextvars, pathlib\n"
        "from rewardflow.reward.code.context_transfer import unpack_context\n"
        f"context = unpack_context(pathlib.Path({str(tmp_path / 'packed')!r}).read_bytes(), contextvars.Context())\n"
        "print([variable.name + '=' + value for variable, value in context.items()])"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "['tenant=acme']"


def test_a_variable_whose_module_is_missing_on_the_other_side_stays_behind(tenancy: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "gone_sample.py").write_text("import contextvars\ngone = contextvars.ContextVar('gone')\n")
    sys.path.insert(0, str(tmp_path))
    import gone_sample  # type: ignore[import-not-found]

    context = context_with(gone_sample.gone, 1)
    context.run(tenancy.tenant.set, "acme")
    packed = pack_context(context)
    sys.path.remove(str(tmp_path))
    del sys.modules["gone_sample"]

    arrived = unpack_context(packed, contextvars.Context())

    assert dict(arrived) == {tenancy.tenant: "acme"}


def test_a_call_runs_in_a_copy_of_its_context(tenancy: ModuleType) -> None:
    context = context_with(tenancy.tenant, "acme")
    call = Call(())

    def reward(suffix: str) -> tuple[str, Call | None]:
        seen = tenancy.tenant.get() + suffix
        tenancy.tenant.set("changed")
        return seen, current_call()

    value, error = run_call(reward, {"suffix": "!"}, call, context)

    assert error is None
    assert value == ("acme!", call)
    assert dict(context) == {tenancy.tenant: "acme"}


@pytest.mark.parametrize("raised", [SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError(), StopIteration(3)])
def test_what_must_not_be_raised_in_a_coroutine_becomes_an_ordinary_error(raised: BaseException) -> None:
    error = as_ordinary_exception(raised)

    assert isinstance(error, RuntimeError)
    assert type(raised).__name__ in str(error)
    assert error.__cause__ is raised
