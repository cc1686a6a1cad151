"""Which JSON gives a key twice, whatever its size and however its characters are written."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.services.http.repeated_keys import NestedTooDeeply, repeats_a_key

PIECES = ['"', "\\", ":", "a", "u003a", "\n", "\u00e9", "\U0001f600"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=4).map("".join)


def written(draw: Any, depth: int) -> str:
    """JSON whose objects may repeat keys, with characters escaped at random."""

    def string() -> str:
        text = json.dumps(draw(TEXTS), ensure_ascii=draw(st.booleans()))
        return text.replace(":", draw(st.sampled_from([":", "\\u003a", "\\u003A"])))

    kind = draw(st.sampled_from(["text", "number", "list", "object"] if depth else ["text", "number"]))
    if kind == "text":
        return string()
    if kind == "number":
        return draw(st.sampled_from(["0", "-1.5e3", "123456789012345678901234567890", "null", "true"]))
    parts = [written(draw, depth - 1) for _ in range(draw(st.integers(0, 3)))]
    if kind == "list":
        return f"[{', '.join(parts)}]"
    return "{" + ", ".join(f"{string()} : {part}" for part in parts) + "}"


@st.composite
def documents(draw: Any) -> str:
    return written(draw, depth=3)


def has_twice(text: str) -> bool:
    found = []

    def look(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found.append(len(dict(pairs)) != len(pairs))
        return dict(pairs)

    json.loads(text, object_pairs_hook=look)
    return any(found)


@given(documents())
def test_the_answer_is_that_of_a_parser_which_looks_at_every_key(text: str) -> None:
    assert repeats_a_key(text.encode(), orjson.loads(text)) == has_twice(text)


@pytest.mark.parametrize("colon", [":", "\\u003a", "\\u003A"])
@pytest.mark.parametrize("num_entries", [10, 10_000])
def test_a_text_of_any_size_is_searched(num_entries: int, colon: str) -> None:
    entries = ", ".join(f'{{"token": "a{colon} {number}", "logprob": -0.5}}' for number in range(num_entries))
    honest = f'{{"content": [{entries}]}}'
    twice = f'{{"content": [{entries}, {{"token": "{colon}", "token": "b"}}]}}'
    assert not repeats_a_key(honest.encode(), orjson.loads(honest))
    assert repeats_a_key(twice.encode(), orjson.loads(twice))


def test_json_that_cannot_be_written_again_is_too_deep() -> None:
    text = b"[" * 300 + b"]" * 300
    with pytest.raises(NestedTooDeeply):
        repeats_a_key(text, orjson.loads(text))
