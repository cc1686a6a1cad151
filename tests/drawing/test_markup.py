"""Text in markup stays text."""

from __future__ import annotations

import html.parser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.drawing.markup import Markup, escaped, joined, number, tag, visible
from rewardflow.errors import InvalidInput

TEXT = st.text() | st.sampled_from(
    [
        "<script>alert(1)</script>",
        "</script><script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        '" onmouseover="alert(1)',
        "' autofocus onfocus='alert(1)",
        "<!--",
        "]]>",
        "&lt;script&gt;",
        "javascript:alert(1)",
    ]
)


class Parsed(html.parser.HTMLParser):
    def __init__(self, markup: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.comments: list[str] = []
        self.feed(markup)
        self.close()

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((name, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)


@given(text=TEXT, value=TEXT)
def test_whatever_the_text_there_is_one_element_with_one_attribute_and_that_text(text: str, value: str) -> None:
    parsed = Parsed(tag("p", text, title=value))
    assert parsed.elements == [("p", {"title": visible(value)})]
    assert parsed.text == visible(text)
    assert parsed.comments == []


@given(texts=st.lists(TEXT))
def test_joining_texts_joins_what_is_seen(texts: list[str]) -> None:
    assert Parsed(tag("p", joined(texts))).text == "".join(map(visible, texts))


def test_markup_is_not_escaped_again_and_nothing_is_nothing() -> None:
    assert tag("p", tag("b", "&"), None, ["a", [None, "b"]]) == "<p><b>&amp;</b>ab</p>"
    assert isinstance(escaped("x"), Markup)


def test_characters_that_hide_or_turn_text_are_shown_as_a_sign() -> None:
    assert visible("a\x00b\u202ec\ud800d\te\r\nf") == "a\ufffdb\ufffdc\ufffdd\te\nf"


@pytest.mark.parametrize("name", ["onclick", "ONLOAD", "style", "on_error"])
def test_an_event_handler_or_a_style_cannot_be_written(name: str) -> None:
    with pytest.raises(InvalidInput, match="neither an event handler nor a style"):
        tag("p", **{name: "alert(1)"})


def test_the_name_of_an_element_must_be_one() -> None:
    with pytest.raises(InvalidInput, match="name of an element"):
        tag("p onclick=alert(1)")


def test_attributes_that_are_none_or_false_are_left_out() -> None:
    assert tag("p", id=None, hidden=False, class_="x", data_step=3) == '<p class="x" data-step="3"></p>'
    assert tag("input", hidden=True) == "<input hidden>"


@given(value=st.floats(-1e6, 1e6))
def test_a_coordinate_is_short_and_near(value: float) -> None:
    assert abs(float(number(value)) - value) <= 0.0051
    assert "e" not in number(value)


def test_a_coordinate_must_be_finite() -> None:
    with pytest.raises(InvalidInput, match="finite"):
        number(float("nan"))
