"""A page that asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rewardflow.drawing.html_page import json_for_script, page
from rewardflow.drawing.markup import Markup, tag

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=20,
)


@given(value=JSON)
def test_data_comes_back_as_it_was_and_cannot_end_its_element(value: Any) -> None:
    text = json_for_script({"value": value, "evil": "</script><!--<script>"})
    assert json.loads(text)["value"] == value
    assert not re.search("[<>&\u2028\u2029]", text)


def test_broken_unicode_infinities_and_huge_numbers_are_still_data() -> None:
    data = json.loads(json_for_script({"a": "\ud800", "b": float("inf"), "c": 10**30}))
    assert data == {"a": "?", "b": None, "c": 1e30}


def test_the_policy_names_the_hashes_of_the_one_script_and_the_one_style() -> None:
    css, script = "p { color: red }", "'use strict';"
    html = page(title="<t>", body=Markup(tag("p", "x")), css=css, script=script, data={})
    for text in (css, script):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"sha256-{digest}" in html
    assert "default-src &#x27;none&#x27;" in html
    assert "unsafe" not in html
    assert "<title>&lt;t&gt;</title>" in html


def test_no_address_is_in_an_empty_page() -> None:
    html = page(title="t", body=Markup(""), css="", script="", data={})
    assert "http:" not in html
    assert "https:" not in html
