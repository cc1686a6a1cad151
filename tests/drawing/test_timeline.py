"""Lanes of work, and calls beneath them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from rewardflow.drawing.timeline import KINDS, Lane, Load, Mark, Span, Timeline, legend, timeline


def spans_of(drawn: str) -> list[tuple[str, float, float]]:
    found = re.findall(
        r'<rect x="([\d.-]+)" y="[\d.]+" width="([\d.]+)" height="[\d.]+" class="span kind-(\w+)"', drawn
    )
    return [(kind, float(x), float(width)) for x, width, kind in found]


def a_picture(*spans: Span, loads: tuple[Load, ...] = ()) -> Timeline:
    return Timeline(started_s=10.0, ended_s=20.0, lanes=[Lane(name="gpu", spans=spans)], loads=loads)


def test_a_span_is_as_wide_as_its_share_of_the_stretch_and_clipped_to_it() -> None:
    drawn = timeline(
        a_picture(
            Span(started_s=10.0, ended_s=15.0, kind="generate"),
            Span(started_s=17.5, ended_s=25.0, kind="update"),
            Span(started_s=0.0, ended_s=9.0, kind="publish"),
        )
    )
    (_, left, width), (kind, _, other_width) = spans_of(drawn)
    assert kind == "update"
    assert width == 2 * other_width
    assert left == 96.0


def test_a_million_thin_pieces_of_work_make_a_small_picture() -> None:
    pieces = [
        Span(started_s=10 + i * 1e-5, ended_s=10 + (i + 1) * 1e-5, kind="update", detail="s") for i in range(10**5)
    ]
    assert len(spans_of(timeline(a_picture(*pieces)))) == 1


def test_calls_of_several_steps_stand_on_each_other() -> None:
    loads = (
        Load(name="step 0", started_s=10.0, width_s=5.0, calls=(4.0, 2.0)),
        Load(name="step 1", started_s=15.0, width_s=2.5, calls=(2.0, 2.0)),
    )
    drawn = timeline(a_picture(loads=loads))
    assert drawn.count('class="area load') == 2
    assert "step 0: calls in flight, 4 at most" in drawn


def test_a_kind_that_is_not_known_is_drawn_as_other() -> None:
    drawn = timeline(a_picture(Span(started_s=10.0, ended_s=15.0, kind='"><script>')))
    assert spans_of(drawn)[0][0] == "other"
    assert "<script" not in drawn


def test_a_mark_outside_of_the_stretch_is_not_drawn() -> None:
    marks = [Mark(at_s=12.0, name="step 0"), Mark(at_s=30.0, name="step 1")]
    drawn = timeline(Timeline(started_s=10.0, ended_s=20.0, lanes=[], marks=marks))
    assert drawn.count('class="mark"') == 1


def test_the_legend_has_the_kinds_that_are_there_in_their_order() -> None:
    assert re.findall(r"kind-(\w+)", legend(["reward", "generate", "no such"])) == ["generate", "reward"]


@given(
    st.lists(
        st.tuples(st.floats(0, 30), st.floats(0, 30), st.sampled_from(list(KINDS))),
        max_size=20,
    )
)
def test_any_spans_make_well_formed_markup_within_the_picture(pieces: list[tuple[float, float, str]]) -> None:
    drawn = timeline(a_picture(*(Span(started_s=a, ended_s=a + b, kind=kind) for a, b, kind in pieces)))
    ET.fromstring(drawn)
    assert all(x >= 96.0 and x + width <= 1109.0 for _, x, width in spans_of(drawn))


def test_the_calls_of_a_thousand_steps_make_a_picture_of_bounded_size() -> None:
    loads = tuple(
        Load(name=f"step {step}", started_s=10.0 + step * 0.01, width_s=0.0001 * (1 + step % 7), calls=(1.0,) * 64)
        for step in range(1000)
    )
    drawn = timeline(a_picture(loads=loads))
    assert drawn.count('class="area load') == 32
    assert "step 0 to step 968: calls in flight, 4 at most" in drawn
    assert len(drawn) < 2_000_000
    ET.fromstring(drawn)
