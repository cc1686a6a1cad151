"""`rewardflow train --print-config`: every setting of a run as it is resolved, and where its value comes from.

Always true: each key of a run file is listed once, but a part that is switched off is one line with null; a value that
may be a secret is not shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rewardflow.cli.display import stdout_console
from rewardflow.cli.safe_text import safe
from rewardflow.cli.train.closing_report import write_json
from rewardflow.runtime.records.saved_settings import shown_settings
from rewardflow.settings.run_file import LoadedRun
from rewardflow.settings.run_keys import keys, sections

Row = tuple[str, Any, str]


def print_config(loaded: LoadedRun, *, file: str, as_json: bool) -> None:
    rows = list(config_rows(loaded, file=file))
    if as_json:
        write_json({name: {"value": value, "from": origin} for name, value, origin in rows})
        return
    console = stdout_console()
    for name, value, origin in rows:
        text = f"{name}: {json.dumps(value, ensure_ascii=False)}"
        console.print(safe(f"{text:<60}  # {origin}"), style="" if origin == "default" else "bold", soft_wrap=True)


def config_rows(loaded: LoadedRun, *, file: str) -> Iterator[Row]:
    shown = shown_settings(loaded.settings)
    switched_off = [name for name in sections() if name and _value_at(shown, name) is None]
    for name, key in keys().items():
        if any(name.startswith(f"{section}.") for section in switched_off):
            continue
        origin: str = loaded.origins.get(name, "default")
        value = _value_at(shown, name)
        if value is _ABSENT:  # a limit that is not given
            value, origin = (None, "not given") if key.is_required else (key.default, origin)
        yield name, value, file if origin == "file" else origin
    yield from ((section, None, "default") for section in switched_off)


_ABSENT: Any = object()


def _value_at(shown: Mapping[str, Any], name: str) -> Any:
    """Returns the value at a dotted name, if it has one."""
    value: Any = shown
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return _ABSENT
        value = value[part]
    return value
